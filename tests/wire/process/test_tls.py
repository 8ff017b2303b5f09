"""TLS over connections that their peers reset: what was opened is closed."""

import socket
import ssl
import struct
import time
from pathlib import Path

import pytest

from wire.process.tls import start_tls


@pytest.mark.parametrize("sent", [b"", b"no TLS"], ids=["nothing sent", "something sent"])
@pytest.mark.parametrize("handshake", [True, False])
def test_a_connection_that_was_reset_before_tls_leaves_no_descriptor_open(handshake: bool, sent: bytes):
    before = _count_descriptors()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
        theirs.sendall(sent)
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        theirs.close()
        ours.settimeout(5.0)
        while not _was_reset(ours):
            time.sleep(0.001)
        with pytest.raises(OSError, match=r"reset|closed before|handshake") as caught:
            start_tls(ssl.create_default_context(), ours, "localhost", handshake=handshake)
        assert ours.fileno() == -1
    assert _count_descriptors() == before, caught.value  # which holds the frames, and what they made


def _count_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def _was_reset(sock: socket.socket) -> bool:
    try:
        sock.getpeername()
    except OSError:
        return True
    return False

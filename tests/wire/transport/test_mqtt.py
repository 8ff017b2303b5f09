"""An abandoned MQTT connection attempt leaves nothing behind that could displace the next connection."""

import asyncio
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloud_hub.security.authority import Authority, utc_now
from wire.transport.mqtt import MqttTransport


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """Where nobody answers."""
    with socket.create_server(("127.0.0.1", 0)) as made:
        made.setblocking(False)
        yield made


async def accepted(listener: socket.socket) -> socket.socket:
    connection, _ = await asyncio.get_running_loop().sock_accept(listener)
    connection.settimeout(10.0)
    return connection


def said_until_the_end(connection: socket.socket) -> bytes:
    found = b""
    with connection:
        while data := connection.recv(1024):
            found += data
    return found


async def test_who_gives_up_before_the_broker_answers_leaves_no_connection_behind(listener: socket.socket):
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await MqttTransport.connect("127.0.0.1", listener.getsockname()[1], "demo--a", None)
    assert b"MQTT" in await asyncio.to_thread(said_until_the_end, await accepted(listener))


async def test_who_gives_up_in_the_middle_of_a_handshake_never_says_who_it_is(listener: socket.socket, tmp_path: Path):
    """The handshake's thread cannot be broken off; when it is done the connection is over."""
    authority = Authority.open(tmp_path, utc_now())
    pair = authority.ensure_server(tmp_path, (), utc_now())
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    server.load_cert_chain(pair.certificate, pair.key)
    client.load_verify_locations(cadata=authority.certificate_pem.decode())
    port = listener.getsockname()[1]
    connecting = asyncio.create_task(MqttTransport.connect("127.0.0.1", port, "demo--a", client))
    connection = await accepted(listener)
    connecting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await connecting
    sealed = await asyncio.to_thread(server.wrap_socket, connection, server_side=True)
    assert await asyncio.to_thread(said_until_the_end, sealed) == b""

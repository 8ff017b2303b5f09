"""TLS on a device with a wrong clock: valid servers are accepted, certainly expired certificates refused."""

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from cloud_hub.security.authority import OWN_LIFE, Authority, utc_now
from edge_agent.system import http

YEAR = timedelta(days=365)


def ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)


class Server:
    """Shows a certificate issued at `issued` to every client; `heard`: what it received in clear."""

    def __init__(self, folder: Path, issued: datetime, authority: Authority | None = None) -> None:
        self.authority = Authority.open(folder, issued)
        (folder / "pair").mkdir()
        pair = (authority or self.authority).ensure_server(folder / "pair", (), issued)
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._context.load_cert_chain(pair.certificate, pair.key)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.heard: list[bytes] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                channel = self._listener.accept()[0]
                channel.settimeout(60)
                with contextlib.suppress(OSError), self._context.wrap_socket(channel, server_side=True) as told:
                    self.heard.append(told.recv(100))

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(60)


@contextlib.contextmanager
def serving(folder: Path, issued: datetime, authority: Authority | None = None) -> Iterator[Server]:
    server = Server(folder, issued, authority)
    try:
        yield server
    finally:
        server.close()


def say(server: Server, floor_ms: int, name: str = "localhost") -> None:
    """Send one word, as a device whose proven hub time is `floor_ms`."""
    context = http.make_tls_context(server.authority.trusted, floor_ms)
    plain = socket.create_connection(("127.0.0.1", server.port), 60)
    with plain, context.wrap_socket(plain, server_hostname=name) as told:
        told.sendall(b"token")


# What the device's wall clock says is played by the server's dates: seen from 1970 a certificate of today begins in 56
# years, seen from 2036 it ended long ago. OpenSSL reads the same wall clock in both cases.


@pytest.mark.parametrize("shift", [10 * YEAR, 50 * YEAR], ids=["ten years ahead", "as seen from 1970"])
def test_a_device_whose_clock_is_behind_connects(tmp_path, shift):
    with serving(tmp_path, utc_now() + shift) as server:
        say(server, floor_ms=ms(utc_now()))


def test_a_device_whose_clock_is_ten_years_ahead_connects(tmp_path):
    issued = utc_now() - 10 * YEAR
    with serving(tmp_path, issued) as server:
        say(server, floor_ms=ms(issued + timedelta(days=30)))  # the last hub time it ever heard


@pytest.mark.parametrize("jump", [timedelta(hours=1), -timedelta(days=1)], ids=["1 h forward", "1 day back"])
def test_a_jump_of_the_clock_changes_nothing(tmp_path, jump):
    with serving(tmp_path, utc_now() + jump) as server:
        say(server, floor_ms=ms(utc_now()))


def test_a_certificate_that_ended_before_the_floor_opens_nothing(tmp_path):
    issued = utc_now() - 10 * YEAR
    with serving(tmp_path, issued) as server:
        with pytest.raises(ssl.SSLCertVerificationError, match="before hub time"):
            say(server, floor_ms=ms(issued + OWN_LIFE + timedelta(seconds=1)))
        say(server, floor_ms=ms(issued + OWN_LIFE - timedelta(seconds=1)))
        while b"token" not in server.heard:  # its threads end in any order, and later than the client
            time.sleep(0.01)
        assert server.heard.count(b"token") == 1  # that of the second alone: nothing was sent before the check


def test_another_authority_and_another_name_are_refused_whatever_the_time(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    other = Authority.open(tmp_path / "b", utc_now())
    with serving(tmp_path / "a", utc_now(), authority=other) as server, pytest.raises(ssl.SSLCertVerificationError):
        say(server, 0)
    (tmp_path / "c").mkdir()
    with serving(tmp_path / "c", utc_now()) as server, pytest.raises(ssl.SSLCertVerificationError):
        say(server, 0, name="hub.example")


def test_a_client_certificate_is_no_server(tmp_path):
    authority = Authority.open(tmp_path, utc_now())
    with serving(tmp_path, utc_now()) as server:
        pair = authority.ensure_client(tmp_path, "localhost", utc_now())
        server._context.load_cert_chain(pair.certificate, pair.key)
        with pytest.raises(ssl.SSLCertVerificationError):
            say(server, 0)


def test_the_systems_authorities_are_never_asked(tmp_path):
    made = http.make_tls_context(Authority.open(tmp_path, utc_now()).trusted, 0)
    assert len(made.get_ca_certs()) == 1
    assert made.check_hostname
    assert made.verify_mode is ssl.CERT_REQUIRED
    assert made.minimum_version == ssl.TLSVersion.TLSv1_2


def test_two_authorities_are_trusted_while_the_hub_replaces_its_own(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
    first, second = (Authority.open(tmp_path / name, utc_now()) for name in "ab")
    both = (*first.trusted, *second.trusted)
    assert len(http.make_tls_context(both, 0).get_ca_certs()) == 2


def test_a_peer_that_shows_nothing_is_refused():
    made = http.DeviceTlsContext(ssl.PROTOCOL_TLS_CLIENT)
    made.floor_ms = 0
    with pytest.raises(ssl.SSLCertVerificationError):
        made.check_not_ended({})


def test_the_last_second_counts_and_the_next_does_not():
    ended = {"notAfter": "Jan  1 00:00:00 2020 GMT"}
    made = http.DeviceTlsContext(ssl.PROTOCOL_TLS_CLIENT)
    made.floor_ms = ms(datetime(2020, 1, 1, tzinfo=UTC))
    made.check_not_ended(ended)
    made.floor_ms += 1
    with pytest.raises(ssl.SSLCertVerificationError):
        made.check_not_ended(ended)

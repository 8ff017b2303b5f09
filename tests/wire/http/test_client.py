"""Blocking HTTP client: where its token goes, how replies are read, and one line for every failure."""

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from wire.http.client import HttpChannel, HttpClient, HttpReply, TransferLimits, TransferPace
from wire.process.exit_codes import ExitCode, ExitError

Serve = Callable[[bytes], tuple[str, list[bytes]]]


@pytest.fixture
def serve(tmp_path: Path) -> Serve:
    """Answers one request on a Unix socket with these bytes; the address, and where the request will stand."""

    def start(answer: bytes) -> tuple[str, list[bytes]]:
        listener, heard = socket.socket(socket.AF_UNIX), list[bytes]()
        listener.bind(str(tmp_path / "s"))
        listener.listen()

        def once() -> None:
            channel, _ = listener.accept()
            with listener, channel:
                request = channel.recv(65536)
                if request.startswith(b"POST"):  # who closes before the body has come breaks the other's pipe
                    while not request.endswith(b"{}"):
                        request += channel.recv(65536)
                heard.append(request)
                channel.sendall(answer)

        threading.Thread(target=once, daemon=True).start()
        return f"unix:{tmp_path / 's'}", heard

    return start


def answer(body: bytes, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def stopped(client: HttpClient) -> ExitError:
    with pytest.raises(ExitError) as caught:
        client.read_object(client.send("GET", "/"))
    assert "\n" not in str(caught.value)
    return caught.value


def test_a_request_carries_its_body_and_the_token(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\n")
    (tmp_path / "token").chmod(0o600)
    url, heard = serve(answer(b'{"a": 1}'))
    client = HttpClient(url=url, server="hub", token_file=str(tmp_path / "token"))
    reply = client.send("POST", "/v1/x", b"{}")
    assert reply.ok
    assert client.read_object(reply) == {"a": 1}
    assert heard[0].startswith(b"POST /v1/x HTTP/1.1\r\n")
    assert b"Authorization: Bearer secret\r\n" in heard[0]


def test_a_token_that_others_may_read_is_never_sent(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\n")
    (tmp_path / "token").chmod(0o644)
    url, heard = serve(answer(b"{}"))
    assert stopped(HttpClient(url=url, server="hub", token_file=str(tmp_path / "token"))).code is ExitCode.CREDENTIALS
    assert heard == []


@pytest.mark.parametrize(
    ("sent", "line"),
    [
        (answer(b"[]"), "is no hub: it answers 200 and no JSON"),
        (answer(b"<html>", "502 Bad Gateway"), "is no hub: it answers 502 and no JSON"),
        (answer(b"[" * 64), "is no hub: "),
        (answer(b" " * 65), "the reply is longer than 64 bytes"),
        (b"SSH-2.0\r\n", "no hub answers at"),
        (b"", "no hub answers at"),
    ],
)
def test_what_is_no_answer_is_one_line(serve: Serve, sent: bytes, line: str) -> None:
    url, _ = serve(sent)
    found = stopped(HttpClient(url=url, server="hub", max_reply_bytes=64))
    assert found.code is ExitCode.HUB
    assert line in str(found)


def test_a_server_that_is_not_there_is_named_with_what_to_look_at(tmp_path: Path) -> None:
    found = stopped(HttpClient(url=f"unix:{tmp_path}/none", server="agent"))
    assert found.code is ExitCode.HUB
    assert str(found) == f"no agent answers at unix:{tmp_path}/none: No such file or directory; is it running?"


@pytest.mark.parametrize("url", ["", "hub", "ftp://hub/x", "http://", "http://hub:99999", "http://hub:x"])
def test_what_is_no_address_is_a_fault_of_the_command_line(url: str) -> None:
    assert stopped(HttpClient(url=url, server="hub")).code is ExitCode.USAGE


def test_nothing_is_sent_where_trust_cannot_be_set_up() -> None:
    def context() -> ssl.SSLContext:
        raise FileNotFoundError(2, "no such file")

    assert stopped(HttpClient(url="https://127.0.0.1:1", server="hub", tls=context)).code is ExitCode.HUB


@pytest.mark.parametrize(
    ("body", "line"),
    [(b'{"error": "no\\nway"}', "no?way"), (b'{"error": 3}', ""), (b"{}", ""), (b"", ""), (b"\xff", "")],
)
def test_the_line_of_a_refusal_is_printable_and_of_text(body: bytes, line: str) -> None:
    assert HttpReply(403, body).error_line == line
    assert not HttpReply(302, body).ok


@pytest.fixture
def answer_twice() -> Iterator[tuple[str, list[int]]]:
    """A server that answers twice on each connection and then closes it unannounced; its URL, and answers by each."""
    counts: list[int] = []

    def run() -> None:
        while True:
            try:
                channel, _ = listener.accept()
            except OSError:  # it is over
                return
            counts.append(0)
            with channel:
                while counts[-1] < 2 and channel.recv(65536):
                    counts[-1] += 1
                    channel.sendall(answer(b"here"))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/file", counts
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(10)


def test_a_connection_stays_open_and_one_that_the_server_closed_meanwhile_is_opened_again(
    answer_twice: tuple[str, list[int]],
) -> None:
    url, counts = answer_twice
    with closing(HttpChannel()) as channel:
        for _ in range(3):
            with channel.get(url, {}, TransferPace(TransferLimits())) as response:
                assert response.read() == b"here"
        assert counts == [2, 1]

"""Who may join a generation over the network: its own ranks, and nobody else, whatever a stranger says."""

import contextlib
import os
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator

import msgspec
import pytest

from cloud_hub.engine.sharded import protocol, rank_links
from cloud_hub.engine.sharded.protocol import JoinOrder, PipeError, RankJoined, RankLink
from cloud_hub.engine.sharded.rank_links import JoinedLink, RankListener, dial_supervisor, find_own_address
from tests.examples import SetTimes
from tests.wire.doubles.closed_port import closed_port

LOOP, ANY = "127.0.0.1", range(1)
LIMIT_S = 60.0


@pytest.fixture
def listener(set_times: SetTimes) -> Iterator[RankListener]:
    set_times(rank_links, _HANDSHAKE_S=LIMIT_S)  # of ranks on a machine however busy
    opened = RankListener(LOOP, ANY, 1)
    yield opened
    opened.close()


def join(order: JoinOrder, token: bytes | None = None) -> socket.socket:
    link = dial_supervisor(order)
    protocol.send_message(link, RankJoined(order.token if token is None else token, order.rank, 7))
    return link


class Accepting:
    """`accept_ranks` in a thread, while the test plays the ranks."""

    def __init__(self, listener: RankListener, world: int) -> None:
        self.joined: list[JoinedLink] = []
        self._given_up = threading.Event()
        self._thread = threading.Thread(target=self._accept, args=(listener, world))
        self._thread.start()

    def _accept(self, listener: RankListener, world: int) -> None:
        with contextlib.suppress(InterruptedError):
            self.joined = listener.accept_ranks(world, time.monotonic() + LIMIT_S, self._check)

    def _check(self) -> None:
        if self._given_up.is_set():
            raise InterruptedError

    def end(self) -> list[JoinedLink]:
        """Who has joined, once all have."""
        self._thread.join()
        return self.joined

    def give_up(self) -> list[JoinedLink]:
        """Who has joined, waiting for nobody else."""
        self._given_up.set()
        return self.end()


def close_all(accepting: Accepting, *ranks: socket.socket) -> None:
    for rank in ranks:
        rank.close()
    for each in accepting.joined:
        each.link.close()


def test_ranks_join_in_any_order_and_arrays_pass_in_both_directions(listener):
    accepting = Accepting(listener, 2)
    ranks = {at: join(listener.make_order(at)) for at in (1, 0)}
    joined = accepting.end()
    assert [each.said.rank for each in joined] == [0, 1]
    body = bytes(range(256)) * 1000
    for at, (link, _) in enumerate(joined):
        protocol.send_message(link, protocol.PingRequest(at), [body])
        word, found = protocol.receive_message(ranks[at], time.monotonic() + LIMIT_S)
        assert (word, bytes(found)) == (protocol.PingRequest(at), body)
        protocol.send_message(ranks[at], protocol.PingReply(at), [body])
        assert bytes(protocol.receive_message(link, time.monotonic() + LIMIT_S)[1]) == body
    close_all(accepting, *ranks.values())


def test_one_thread_sends_while_another_receives_and_a_shutdown_wakes_it(listener):
    accepting = Accepting(listener, 1)
    rank = join(listener.make_order(0))
    link = accepting.end()[0].link
    sender, count = link.dup(), 200
    body = os.urandom(300_000)
    echoing = threading.Thread(target=echo, args=(rank, count))
    sending = threading.Thread(target=send_all, args=(sender, count, body))
    for thread in (echoing, sending):
        thread.start()
    for number in range(count):
        word, found = protocol.receive_message(link, time.monotonic() + LIMIT_S)
        assert (word, bytes(found)) == (protocol.PingReply(number), body)
    sending.join()
    echoing.join()
    threading.Timer(0.1, sender.shutdown, [socket.SHUT_RDWR]).start()
    with pytest.raises(PipeError, match="gone"):
        protocol.receive_message(link, time.monotonic() + LIMIT_S)
    for each in (rank, link, sender):
        each.close()


def test_a_second_message_that_came_with_the_first_is_seen_though_no_selector_shows_it(listener):
    accepting = Accepting(listener, 1)
    rank = join(listener.make_order(0))
    link = accepting.end()[0].link
    assert not link.pending
    for number in range(2):
        protocol.send_message(rank, protocol.PingReply(number))
    assert select.select([link], [], [], LIMIT_S)[0]
    time.sleep(0.1)  # until both have come: the assertions hold if they have not, too
    assert protocol.receive_message(link, time.monotonic() + LIMIT_S)[0] == protocol.PingReply(0)
    assert link.pending or select.select([link], [], [], LIMIT_S)[0]
    assert protocol.receive_message(link, time.monotonic() + LIMIT_S)[0] == protocol.PingReply(1)
    assert not link.pending
    rank.close()
    link.close()


def echo(rank: socket.socket, count: int) -> None:
    for _ in range(count):
        word, body = protocol.receive_message(rank)
        assert isinstance(word, protocol.PingRequest)
        protocol.send_message(rank, protocol.PingReply(word.number), [bytes(body)])


def send_all(link: RankLink, count: int, body: bytes) -> None:
    for number in range(count):
        protocol.send_message(link, protocol.PingRequest(number), [body], LIMIT_S)


def test_a_rank_of_an_older_generation_and_a_second_rank_of_one_number_are_refused(listener):
    older = RankListener(LOOP, ANY, 0)
    accepting = Accepting(listener, 2)
    order = listener.make_order(0)
    strangers = [join(order, older.make_order(0).token), join(order, b"")]
    doubles = [join(order), join(order)]
    other = join(listener.make_order(1))
    joined = accepting.end()
    assert [each.said.rank for each in joined] == [0, 1]
    listener.close()  # the second may come when both ranks are there: nobody takes it any more
    for refused in strangers:
        with pytest.raises(PipeError, match="gone"):
            protocol.receive_message(refused, time.monotonic() + LIMIT_S)
    protocol.send_message(joined[0].link, protocol.PingRequest(0))
    assert sorted(hears(double) for double in doubles) == [False, True]  # each is met in a thread of its own
    close_all(accepting, *strangers, *doubles, other)
    older.close()


def hears(rank: socket.socket) -> bool:
    """Whether a rank was taken: it receives a message, or finds the other side gone."""
    try:
        protocol.receive_message(rank, time.monotonic() + LIMIT_S)
    except PipeError:
        return False
    return True


def test_ranks_that_do_not_come_in_time_are_counted(listener):
    with pytest.raises(TimeoutError, match="2 of 2 ranks did not connect in time"):
        listener.accept_ranks(2, time.monotonic(), lambda: None)


def test_strangers_that_say_nothing_or_nonsense_hold_up_no_rank(listener):
    accepting = Accepting(listener, 1)
    order = listener.make_order(0)
    plain = [socket.create_connection((order.host, order.port)) for _ in range(20)]
    for link in plain[:10]:
        link.sendall(b"GET / HTTP/1.1\r\n\r\n")
    claiming = dial_supervisor(order)  # says that two gibibytes follow: nothing of that is allocated
    claiming.sendall(struct.pack("<IQ", 1 << 31, 1 << 31))
    rank = join(order)
    assert [each.said.pid for each in accepting.end()] == [7]
    for each in (*plain, claiming, rank):
        each.close()
    accepting.joined[0].link.close()


def test_a_rank_tells_its_token_to_no_other_supervisor(listener):
    thief = RankListener(LOOP, ANY, 1)
    accepting = Accepting(thief, 1)
    order = msgspec.structs.replace(listener.make_order(0), port=thief.make_order(0).port)
    with pytest.raises(PipeError, match="another supervisor than ours"):
        dial_supervisor(order)
    assert accepting.give_up() == []
    thief.close()


def test_nothing_older_than_tls_13_is_spoken(listener):
    accepting = Accepting(listener, 1)
    order = listener.make_order(0)
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with socket.create_connection((order.host, order.port)) as plain, pytest.raises(OSError, match=r"TLS|SSL|reset"):
        old.wrap_socket(plain)
    assert accepting.give_up() == []


def test_ports_are_taken_in_their_order_and_if_all_are_taken_it_says_so():
    with socket.create_server((LOOP, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=rf"cannot listen for ranks on 127.0.0.1, ports {port} to {port}: "):
            RankListener(LOOP, range(port, port + 1), 1)


def test_no_supervisor_and_no_way_are_one_line():
    with closed_port() as port, pytest.raises(PipeError, match=rf"no supervisor at 127.0.0.1:{port} "):
        dial_supervisor(JoinOrder(0, 1, LOOP, port, b"", b""))
    assert find_own_address(LOOP) == LOOP

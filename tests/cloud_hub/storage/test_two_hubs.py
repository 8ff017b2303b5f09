"""Two hubs write to one store at the same moment: what is left is what one of them wrote, never a mixture."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

import pytest
import sqlalchemy as sa

from cloud_hub.core.lineup import ModelUse
from cloud_hub.database.connection import open_part
from cloud_hub.database.parts import LEDGER, DatabaseUrls
from cloud_hub.database.tables import leaves, nodes
from cloud_hub.storage.ledger_log import LedgerLog, LoggedHead, ReceivedHead
from cloud_hub.storage.versions import ModelUsageStore
from tests.cloud_hub.doubles.devices import SimDevice
from tests.cloud_hub.storage.test_ledger_log import received
from wire.ledger import merkle
from wire.ledger.merkle import TreeHead
from wire.protocol.messages import ModelRef

ROUNDS = 25
HEADS = 3  # of each hub in a round


@contextmanager
def closing_engine(engine: sa.Engine) -> Iterator[sa.Engine]:
    yield engine
    engine.dispose()


def test_a_hub_that_goes_on_over_a_database_restored_from_yesterday_builds_on_what_is_there(urls: DatabaseUrls):
    device = SimDevice("demo--north")
    with ExitStack() as stack:
        hub, other = (stack.enter_context(closing(LedgerLog.open(urls.ledger, 1_000))) for _ in range(2))
        hub.append([received(number, device) for number in range(1, 6)])
        engine = stack.enter_context(closing_engine(open_part(urls.ledger, LEDGER)))
        with engine.begin() as connection:  # the last three heads came after the backup
            connection.execute(leaves.delete().where(leaves.c.place >= 2))
            for level in range(3):
                connection.execute(nodes.delete().where(nodes.c.level == level, (nodes.c.place + 1) * 2**level > 2))
        other.append([received(number, device) for number in range(11, 15)])
        hub.append([received(number, device) for number in range(21, 24)])
        with closing(LedgerLog.open(urls.ledger, 1_000)) as fresh:
            assert hub.tree() == other.tree() == fresh.tree()
            assert fresh.tree().size == 2 + 4 + 3
            for place in range(9):
                leaf = fresh.leaf_at(place)
                assert leaf is not None
                proof = hub.prove_inclusion(place, 9)
                assert merkle.verify_inclusion(fresh.tree(), place, merkle.hash_leaf(leaf.encode_leaf()), proof)


def test_heads_whose_write_failed_at_one_hub_are_logged_by_the_other_without_a_fork(urls: DatabaseUrls):
    device = SimDevice("demo--north")
    with ExitStack() as stack:
        hub, other = (stack.enter_context(closing(LedgerLog.open(urls.ledger, 1_000))) for _ in range(2))
        hub.append([received(1, device)])
        engine = stack.enter_context(closing_engine(open_part(urls.ledger, LEDGER)))
        with (
            engine.begin() as connection
        ):  # a head of theirs that lacks its nodes: whatever is next fails in the middle
            connection.execute(nodes.insert(), {"level": 0, "place": 3, "hash": b"in the way"})
        with pytest.raises(sa.exc.SQLAlchemyError):
            hub.append([received(number, device) for number in (2, 3, 4)])
        with engine.begin() as connection:
            connection.execute(nodes.delete().where(nodes.c.hash == b"in the way"))
        taken_over = other.append([received(number, device) for number in (3, 4, 5)])
        again = hub.append([received(number, device) for number in (2, 3, 4)])  # the device tells it again
        assert [each.place for each in taken_over] == [1, 2, 3]
        assert [each.place for each in again] == [4, 1, 2]
        assert hub.tree() == other.tree()
        with closing(LedgerLog.open(urls.ledger, 1_000)) as fresh:
            assert fresh.tree() == hub.tree()


def test_of_the_models_that_two_hubs_record_for_one_device_one_hubs_remain(urls: DatabaseUrls):
    uses = [ModelUse((ModelRef("digits", version, "cut", "pack8"),), version) for version in (1, 2)]
    with ExitStack() as stack:
        hubs = [stack.enter_context(closing(ModelUsageStore.open(urls.versions))) for _ in uses]
        together = threading.Barrier(len(hubs))

        def write(hub: ModelUsageStore, use: ModelUse) -> None:
            together.wait()
            hub.put_uses({"demo--a": use})

        for _ in range(ROUNDS):
            writers = [threading.Thread(target=write, args=pair) for pair in zip(hubs, uses, strict=True)]
            for writer in writers:
                writer.start()
            for writer in writers:
                writer.join()
            assert hubs[0].read_uses()["demo--a"] in uses
            hubs[0].put_uses({"demo--a": ModelUse((), 0)})


def test_the_heads_that_two_hubs_log_at_once_are_one_log_without_a_fork(urls: DatabaseUrls):
    devices = [SimDevice("demo--north"), SimDevice("demo--south")]
    trees: list[TreeHead] = []
    logged: dict[int, LoggedHead] = {}
    with ExitStack() as stack:
        hubs = [stack.enter_context(closing(LedgerLog.open(urls.ledger, 1_000))) for _ in devices]
        together = threading.Barrier(len(hubs))

        def write(hub: LedgerLog, heads: list[ReceivedHead]) -> None:
            together.wait()
            for each in hub.append(heads):
                assert logged.setdefault(each.place, each) is each, "two heads got one place"
            trees.append(hub.tree())

        for number in range(ROUNDS):
            groups = [[received(number * HEADS + at + 1, device) for at in range(HEADS)] for device in devices]
            writers = [threading.Thread(target=write, args=pair) for pair in zip(hubs, groups, strict=True)]
            for writer in writers:
                writer.start()
            for writer in writers:
                writer.join()
    assert sorted(logged) == list(range(2 * ROUNDS * HEADS))
    assert {each.flaw for each in logged.values()} == {""}
    with closing(LedgerLog.open(urls.ledger, 1_000)) as later:
        whole = later.tree()
        assert whole.size == len(logged)
        for place, each in logged.items():
            leaf = merkle.hash_leaf(each.leaf.encode_leaf())
            assert merkle.verify_inclusion(whole, place, leaf, later.prove_inclusion(place, whole.size))
        for tree in trees:  # what either hub has signed is a beginning of the one log
            assert merkle.verify_consistency(tree, whole, later.prove_consistency(tree.size, whole.size))

"""Two hubs write to one store at the same moment: what is left is what one of them wrote, never a mixture."""

import threading
from contextlib import ExitStack, closing

from cloud_hub.core.lineup import ModelUse
from cloud_hub.database.parts import DatabaseUrls
from cloud_hub.storage.ledger_log import LedgerLog, LoggedHead, ReceivedHead
from cloud_hub.storage.versions import ModelUsageStore
from tests.cloud_hub.doubles.devices import SimDevice
from tests.cloud_hub.storage.test_ledger_log import received
from wire.ledger import merkle
from wire.ledger.merkle import TreeHead
from wire.protocol.messages import ModelRef

ROUNDS = 25
HEADS = 3  # of each hub in a round


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

"""Two hubs write to one store at the same moment: what is left is what one of them wrote, never a mixture."""

import threading
from contextlib import ExitStack, closing

from cloud_hub.core.lineup import ModelUse
from cloud_hub.database.parts import DatabaseUrls
from cloud_hub.storage.versions import ModelUsageStore
from wire.protocol.messages import ModelRef

ROUNDS = 25


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

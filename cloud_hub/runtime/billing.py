"""What a hub's work used, on its way to the bill: batches of web requests, language models, and the cards' energy."""

import time
from collections.abc import Callable, Mapping

from cloud_hub.core.queues import Batch
from cloud_hub.engine.card_energy import EnergyCounters
from cloud_hub.engine.types import EngineSetup
from cloud_hub.engine.worker import BatchResult
from cloud_hub.llm.model import LlmRecord
from cloud_hub.llm.service import LanguageModels
from cloud_hub.llm.telemetry import describe_usage, is_computed_here
from cloud_hub.serving.energy import EnergyMeter, EnergyUser
from cloud_hub.storage.costs import Usage, describe_batch
from cloud_hub.storage.gateway import StoreGateway


class HubBilling:
    """Gathers what was used for the store. `setups`: what each loaded model runs on.

    `counters`: of this machine's graphics cards, if their energy is counted.
    """

    def __init__(
        self,
        store: StoreGateway,
        region: str,
        models: LanguageModels,
        setups: Callable[[], Mapping[str, EngineSetup]],
        counters: EnergyCounters | None,
    ) -> None:
        self._store = store
        self._setups = setups
        self._region = region
        self._energy = counters and EnergyMeter(
            counters, region, self._bill_energy, lambda: models.oldest_begun_at, time.time
        )
        models.add_sink(self._bill_record)

    async def run(self) -> None:
        """Read the energy counters until cancelled; nothing without any."""
        if self._energy:
            await self._energy.run()

    def on_computed(self, batch: Batch, result: BatchResult, now: float) -> None:
        """A batch was computed; `now` in hub seconds."""
        if result.error or any(each.usage for each in result.predictions):  # a text is billed by its tokens
            return
        self._store.add_usages(describe_batch(batch, result.seconds, self._region, now))
        if self._energy:
            self._energy.on_batch(batch, result.seconds, self._setups().get(batch.model))

    def _bill_record(self, record: LlmRecord) -> None:
        if self._energy and is_computed_here(record):
            user = EnergyUser(record.caller.tenant, record.model, record.region)
            self._energy.ledger.on_computed(user, record.begun_at, record.ended_at)
        if record.caller.question:
            return  # a device's: billed in the commit that stores its answer
        self._bill_energy([describe_usage(record)])

    def _bill_energy(self, used: list[Usage]) -> None:
        self._store.add_usages(used)
        self._store.submit_job(bill_at_once=True)

"""Scheduler of inference batches over all models, with retries, engine checks, and loading on demand. Pure.

Rule 1: an engine with a free slot never waits. Rule 2: a batch that fails is tried once more, then item by item; an
item that fails alone is refused only if the engine passes its self test, otherwise the engine is down and all wait.
Its sender's items are batched by themselves from then on for a while; if such a batch fails, its items take their turns
one by one. Rule 3: a model that is unloaded finishes what waits first; one that is known but not loaded is loaded when
work arrives.
"""

from collections import Counter
from collections.abc import Callable, Iterable

from cloud_hub.core.commands import BatchItem, CheckEngine, LoadModel, QuestionKey, RunBatch, UnloadModel
from cloud_hub.core.queues import Batch, ModelQueue, ModelState
from cloud_hub.engine.types import ModelCard
from policies.monitoring.backoff import compute_delay
from policies.serving.batching import BatchCost
from wire.protocol.messages import RefusalReason

__all__ = ["Batch", "Batcher", "ModelState"]

RECHECK_BASE_S = 1.0
RECHECK_CAP_S = 30.0


class Batcher:
    """Owns the queues of all models and the batches that engines are running.

    `alive` says whether a device's item is still waited for; items of web requests it tracks itself.
    """

    def __init__(
        self, cards: Iterable[ModelCard], max_batch: int, alive: Callable[[BatchItem], bool] = lambda _item: True
    ) -> None:
        self._max_batch = max_batch
        self._device_alive = alive
        self._queues: dict[str, ModelQueue] = {}
        self._running: dict[int, Batch] = {}
        self._tickets = 0
        self._local: dict[QuestionKey, BatchItem] = {}
        self._tenants: Counter[str] = Counter()  # of web requests
        self._expired: list[BatchItem] = []
        for card in cards:
            self.add_model(card, ModelState.READY)

    # -- status

    def queued_by_model(self) -> dict[str, int]:
        """Number of waiting items by model."""
        return {name: len(queue) for name, queue in self._queues.items()}

    def down_models(self) -> tuple[str, ...]:
        """Models whose engine fails its self test or cannot be loaded."""
        return tuple(name for name, queue in self._queues.items() if queue.down)

    def find_queue(self, model: str) -> ModelQueue | None:
        """The queue of a known model; None if it is unknown."""
        return self._queues.get(model)

    def model_state(self, model: str) -> ModelState:
        """Loading state of a known model. KeyError if it is unknown."""
        return self._queues[model].state

    def model_states(self) -> dict[str, tuple[ModelState, str]]:
        """By model: its state, and the error of its last load ("" = none)."""
        return {name: (queue.state, queue.why) for name, queue in self._queues.items()}

    @property
    def served_per_s(self) -> float:
        """Throughput in items per second of all engines that have work, or of all if none has; 0 = unknown."""
        busy = [queue for queue in self._queues.values() if queue.running or len(queue)]
        return sum(queue.served_per_s for queue in busy or self._queues.values())

    @property
    def pressed(self) -> int:
        """Number of models that have more waiting than one batch takes."""
        return sum(queue.pressed for queue in self._queues.values())

    def count_ahead(self, model: str, band: int, tenant: str) -> float:
        """Number of items of `model` that would be served before a new one of this band and tenant."""
        return self._queues[model].count_ahead(band, tenant)

    def last_used(self, model: str) -> float:
        """Hub time (s) at which the last item of the model arrived."""
        return self._queues[model].used_s

    def weight_bytes(self, model: str) -> int:
        """Bytes of a model's weights: as loaded if it ever was, else as stored."""
        return self._queues[model].card.weight_bytes

    def open_web_items(self) -> list[BatchItem]:
        """Samples of web requests that somebody still waits for."""
        return list(self._local.values())

    # -- models that come and go

    def add_model(self, card: ModelCard, state: ModelState = ModelState.COLD) -> None:
        """Make another model known, cold unless said otherwise."""
        if card.name not in self._queues:
            queue = self._queues[card.name] = ModelQueue(card, self._max_batch, self.is_waited_for)
            queue.state = state

    def remove_model(self, model: str) -> tuple[BatchItem, ...]:
        """Remove a model for good; returns the items that still waited for it."""
        queue = self._queues.pop(model)
        left: list[BatchItem] = []
        while len(queue):
            _, items, over = queue.form_batch(0.0)
            left += [*items, *over]
        return (*left, *queue.suspects)

    def load(self, model: str) -> list[LoadModel | UnloadModel]:
        """Start loading a cold model, or keep one that was about to be unloaded."""
        queue = self._queues[model]
        if queue.state is ModelState.CLOSING:
            queue.state = ModelState.READY
        if queue.state is not ModelState.COLD:
            return []
        queue.state = ModelState.LOADING
        return [LoadModel(model)]

    def unload(self, model: str) -> list[LoadModel | UnloadModel]:
        """Close a model: its engine is unloaded once what waits now is computed; what comes later loads it again."""
        queue = self._queues[model]
        if queue.state is ModelState.READY:
            queue.close()
        return self._unload_if_closed(queue)

    def on_loaded(self, model: str, why: str, now: float, card: ModelCard | None = None) -> None:
        """Result of a load. `why` "": ready.

        Else the error, and it is tried again with growing delays while work waits.
        """
        queue = self._queues.get(model)
        if queue is None:
            return
        queue.why, queue.card = why, card or queue.card
        queue.state = ModelState.COLD if why else ModelState.READY
        queue.down = queue.down + 1 if why else 0
        if why:
            queue.check_at = now + compute_delay(queue.down, 1.0, RECHECK_BASE_S, RECHECK_CAP_S)

    def expect_cost(self, model: str, cost: BatchCost) -> None:
        """Set the batch cost of a model, as measured at warm-up."""
        self._queues[model].expect_cost(cost)

    # -- items

    def add_item(self, model: str, item: BatchItem) -> None:
        """Queue an item of a device's question."""
        self._queues[model].put_item(item)

    def count_refused(self, model: str, items: int, reason: RefusalReason) -> None:
        """Count items that were refused since there was no room for them: they arrived all the same."""
        if reason is RefusalReason.BUSY and (queue := self._queues.get(model)):
            queue.arrived += items

    @property
    def web_open(self) -> int:
        """Number of samples of web requests in progress."""
        return len(self._local)

    def count_for_tenant(self, tenant: str) -> int:
        """Number of a tenant's web samples in progress."""
        return self._tenants[tenant]

    @property
    def tenants(self) -> int:
        """Number of tenants with web requests in progress."""
        return len(self._tenants)

    def add_web_item(self, model: str, item: BatchItem) -> None:
        """Queue a sample of a web request."""
        self._local[item.key] = item
        self._tenants[item.tenant] += 1
        self.add_item(model, item)

    def claim_web_item(self, key: QuestionKey) -> BatchItem | None:
        """Claim a web sample to answer it: its item the first time, then None."""
        item = self._local.pop(key, None)
        if item is not None:
            self._tenants[item.tenant] -= 1
            if not self._tenants[item.tenant]:
                del self._tenants[item.tenant]
        return item

    def drop_web_items(self, model: str, keys: Iterable[QuestionKey]) -> None:
        """Abandon the rest of these web samples: nobody waits for them any more."""
        for key in keys:
            if self.claim_web_item(key) is not None:
                self.on_abandoned(model)

    def on_abandoned(self, model: str) -> None:
        """Note that one item of this model is no longer waited for."""
        if model in self._queues:
            self._queues[model].on_abandoned()

    def remove_dead(self) -> None:
        """Remove the items of all models that nobody waits for any more."""
        for queue in self._queues.values():
            queue.remove_dead()

    def take_expired(self) -> list[BatchItem]:
        """Items whose deadline passed before their turn, since the last call."""
        expired, self._expired = self._expired, []
        return expired

    def is_waited_for(self, item: BatchItem) -> bool:
        """Whether anybody still waits for an item."""
        return self._local.get(item.key) is item if not item.key.device else self._device_alive(item)

    # -- batches

    def next_commands(self, now: float) -> list[RunBatch | LoadModel | UnloadModel]:
        """Commands that fill free slots with batches, load models that have work, and unload those that are closed."""
        commands: list[RunBatch | LoadModel | UnloadModel] = []
        for name, queue in self._queues.items():
            while queue.idle and len(queue):
                attempt, items, over = queue.form_batch(now)
                self._expired += over
                if items:
                    commands.append(self._start_batch(queue, attempt, items, now))
            if queue.state is ModelState.COLD and len(queue) and not queue.down:
                commands += self.load(name)
            elif queue.state is ModelState.CLOSING:
                commands += self._unload_if_closed(queue)
        return commands

    def running_batch(self, ticket: int) -> Batch:
        """The running batch with this ticket. KeyError if there is none."""
        return self._running[ticket]

    def finish_batch(self, ticket: int, seconds: float = 0.0) -> Batch:
        """Remove a finished batch and learn from its time. `seconds` 0 = it failed."""
        batch = self._running.pop(ticket)
        queue = self._queues.get(batch.model)
        if queue is not None:
            queue.running.pop(ticket, None)
            queue.learn_cost(batch, seconds)
        return batch

    def on_batch_failed(self, ticket: int) -> list[CheckEngine]:
        """A batch failed: it is tried whole again, then item by item; one of a sender that failed lately at once so.

        An item that fails alone causes an engine check.
        """
        batch = self.finish_batch(ticket)
        queue = self._queues.get(batch.model)
        if queue is None:
            return []
        if batch.attempt == 0 and queue.is_apart(batch):
            queue.repeat_singly(batch.items)
        elif batch.attempt == 0:
            queue.again.append((1, batch.items))
        elif len(batch.items) > 1:
            queue.again.extend((2, (item,)) for item in batch.items)
        else:
            queue.suspects.extend(batch.items)
            return [] if queue.checking else [self._start_check(queue)]
        return []

    def on_checked(self, model: str, works: bool, now: float) -> tuple[BatchItem, ...]:
        """Result of an engine check; returns the items to refuse for good.

        Those failed alone although the engine works. If it does not, it is down, and the items wait for it.
        """
        queue = self._queues.get(model)
        if queue is None:
            return ()
        queue.checking = False
        suspects, queue.suspects = tuple(queue.suspects), []
        if works:
            queue.down = 0
            for item in suspects:
                queue.isolate_sender(item, now)
            return suspects
        queue.again.extendleft((2, (item,)) for item in reversed(suspects))
        queue.down += 1
        queue.check_at = now + compute_delay(queue.down, 1.0, RECHECK_BASE_S, RECHECK_CAP_S)
        return ()

    def on_wake(self, now: float) -> list[CheckEngine | LoadModel | UnloadModel]:
        """Periodic: check engines that are down again, and retry failed loads, with growing delays (2 to 30 s)."""
        commands: list[CheckEngine | LoadModel | UnloadModel] = []
        for name, queue in self._queues.items():
            if not queue.down or queue.checking or queue.check_at > now:
                continue
            if queue.state is ModelState.COLD:
                commands += self.load(name) if len(queue) else []
            elif queue.state is not ModelState.LOADING:
                commands.append(self._start_check(queue))
        return commands

    def _start_check(self, queue: ModelQueue) -> CheckEngine:
        queue.checking = True
        return CheckEngine(queue.card.name)

    def _unload_if_closed(self, queue: ModelQueue) -> list[LoadModel | UnloadModel]:
        if not queue.closed:
            return []
        queue.state = ModelState.COLD
        return [UnloadModel(queue.card.name)]

    def _start_batch(self, queue: ModelQueue, attempt: int, items: tuple[BatchItem, ...], now: float) -> RunBatch:
        self._tickets += 1
        batch = Batch(self._tickets, queue.card.name, items, attempt, now)
        queue.running[batch.ticket] = self._running[batch.ticket] = batch
        return RunBatch(batch.ticket, batch.model, items)

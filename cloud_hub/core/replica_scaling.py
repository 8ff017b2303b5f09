"""Replicas of models by their load: looks once a second and says how many are to run; a waiting room for none. Pure.

What is wanted is decided by `policies.serving.scaling`. Rule: how many run is what the launcher reports, never what was
asked of it. Rule: a model that rests (it is scaled to zero) is loaded again when anything asks for it, and whoever asks
meanwhile waits in a room that has a size and an end; questions of devices that were stored stay owed.
"""

from collections import deque
from collections.abc import Mapping
from typing import Any

import msgspec

from cloud_hub.core.commands import Command, SetReplicas
from cloud_hub.core.queues import ModelQueue, ModelState
from cloud_hub.core.scheduler import Batcher
from cloud_hub.system.settings import HubSettings
from policies.monitoring.backoff import compute_delay
from policies.serving.admission import RefuseQuestion
from policies.serving.scaling import (
    ModelLoad,
    ScalingRules,
    ScalingState,
    may_wait,
    measure_need,
    plan_replicas,
    rate_in_time,
)
from wire.protocol.messages import RefusalReason

RATE_S = 10.0  # arrivals are counted over so long
ROOM_RETRY_S = 5.0
_RETRY_BASE_S, _RETRY_CAP_S = 2.0, 60.0  # of a replica that could not be started
_LOADED = (ModelState.READY, ModelState.CLOSING)


class ReplicaView(msgspec.Struct, frozen=True):
    """Replicas of a model. `need`: what its load takes, in replicas and parts of one; `why`: one did not start."""

    wanted: int
    running: int
    need: float
    why: str = ""


class _ScaledModel:
    """What is remembered of one scaled model."""

    def __init__(self, rules: ScalingRules, now: float) -> None:
        self.rules = rules
        self.state = ScalingState(max(1, rules.floor), now, now)  # it is loaded, and stays so until it is idle
        self.seen: deque[tuple[float, int]] = deque()  # (time, items that had arrived)
        self.asked = 1  # replicas, of the launcher
        self.failures = 0
        self.not_before = 0.0
        self.backlog = 0.0
        self.need = 0.0
        self.why = ""

    def measure_rate(self, arrived: int, now: float) -> float:
        """Arrivals a second over the last `RATE_S` seconds."""
        if self.seen and now < self.seen[-1][0]:
            self.seen.clear()  # the clock went back
        self.seen.append((now, arrived))
        while len(self.seen) > 2 and now - self.seen[1][0] >= RATE_S:
            self.seen.popleft()
        began, before = self.seen[0]
        return max(0, arrived - before) / max(1.0, now - began)


class ReplicaScaling:
    """Owns how many replicas each scaled model is to have."""

    def __init__(self, settings: HubSettings, batcher: Batcher) -> None:
        self._rules = settings.scaling
        self._obeys = settings.obeys_scaling
        self._most_bytes = settings.max_loaded_bytes
        self._batcher = batcher
        self._models: dict[str, _ScaledModel] = {}
        self._resting: set[str] = set()

    @property
    def is_empty(self) -> bool:
        """Whether no model is scaled."""
        return not self._rules

    @property
    def resting(self) -> frozenset[str]:
        """Models that were scaled to zero: loaded again when anything asks for them."""
        return frozenset(self._resting)

    def find_rules(self, model: str) -> ScalingRules | None:
        """Rules of `digits@7`: its own, else its model's; None if it is not scaled."""
        return self._rules.get(model) or self._rules.get(model.partition("@")[0])

    def views(self) -> dict[str, ReplicaView]:
        """Replicas of each scaled model that serves or rests."""
        found = {}
        for name, model in self._models.items():
            queue = self._batcher.find_queue(name)
            running = queue.card.slots if queue is not None and queue.state in _LOADED else 0
            found[name] = ReplicaView(model.state.wanted, running, model.need, model.why)
        return found

    def describe(self) -> dict[str, Any]:
        """Return what callers see of them, by model."""
        return {
            name: {"wanted": view.wanted, "running": view.running, "need": round(view.need, 3), "why": view.why}
            for name, view in self.views().items()
        }

    # -- events

    def look(self, now: float) -> list[Command]:
        """Periodic, about once a second: commands that start and stop replicas."""
        commands: list[Command] = []
        if not self._rules:
            return commands
        for name in list(self._batcher.model_states()):
            queue, rules = self._batcher.find_queue(name), self.find_rules(name)
            if queue is None or rules is None:
                continue
            if queue.state is ModelState.COLD and name not in self._resting:
                self._models.pop(name, None)  # not loaded yet, unloaded by a person, or to make room for another
                continue
            model = self._models.setdefault(name, _ScaledModel(rules, now))
            self._plan(model, queue, now)
            commands += self._obey(name, model, queue, now) if self._obeys else []
        for gone in self._models.keys() - self._batcher.model_states().keys():
            del self._models[gone]
            self._resting.discard(gone)
        return commands

    def on_replicas(self, model: str, count: int, why: str, now: float) -> None:
        """So many replicas run now. `why`: one could not be started, "" if that is not so: tried again later."""
        queue, scaled = self._batcher.find_queue(model), self._models.get(model)
        if queue is not None and queue.state in _LOADED:
            queue.set_replicas(count)
        if scaled is None:
            return
        scaled.why = why
        if why:
            scaled.failures += 1
            scaled.asked = count
            scaled.not_before = now + compute_delay(scaled.failures, 1.0, _RETRY_BASE_S, _RETRY_CAP_S)
        elif count >= scaled.asked:
            scaled.failures = 0

    def on_backlog(self, waiting: Mapping[str, float]) -> None:
        """So many items wait elsewhere, by model: as jobs in the database."""
        for name, model in self._models.items():
            model.backlog = waiting.get(name, 0.0)

    # -- the waiting room

    def refuse_entry(self, model: str, items: int = 1) -> RefuseQuestion | None:
        """Refusal if the model has no replica now, and its waiting room no place for so many; None = come in."""
        queue, rules = self._batcher.find_queue(model), self.find_rules(model)
        if queue is None or rules is None or queue.state in _LOADED or may_wait(rules, len(queue) + items - 1, 0.0):
            return None
        queue.remove_dead()
        if may_wait(rules, len(queue) + items - 1, 0.0):
            return None
        return RefuseQuestion(RefusalReason.BUSY, ROOM_RETRY_S)

    def find_overdue(self, now: float) -> dict[str, float]:
        """By model without a replica: who arrived at this time (hub seconds) or before has waited long enough."""
        states = self._batcher.model_states() if self._rules else {}
        empty = [name for name, (state, _) in states.items() if state not in _LOADED]
        return {name: now - rules.room_s for name in empty if (rules := self.find_rules(name))}

    # -- looks

    def _plan(self, model: _ScaledModel, queue: ModelQueue, now: float) -> None:
        rate = model.measure_rate(queue.arrived, now)
        running = sum(len(batch.items) for batch in queue.running.values())
        backlog = model.backlog + queue.background
        load = ModelLoad(rate, len(queue) - queue.background, running, backlog)
        replica_rate = rate_in_time(queue.cost, queue.max_batch, model.rules.deadline_s)
        model.need = measure_need(model.rules, load, replica_rate)
        model.state = plan_replicas(model.rules, model.state, load, replica_rate, now)

    def _obey(self, name: str, model: _ScaledModel, queue: ModelQueue, now: float) -> list[Command]:
        wanted = model.state.wanted
        if queue.state is not ModelState.READY:
            model.asked = 1
            queue.set_replicas(1)
            may_load = queue.state is ModelState.COLD and wanted and not queue.down
            return [*self._batcher.load(name)] if may_load else []
        if not wanted:
            self._resting.add(name)
            return [*self._batcher.unload(name)]
        self._resting.discard(name)
        target = self._limit_by_memory(wanted, queue)
        if target == model.asked or now < model.not_before:
            return []
        model.asked = target
        return [SetReplicas(name, target)]

    def _limit_by_memory(self, wanted: int, queue: ModelQueue) -> int:
        """As many as `wanted`, or as many more as there is memory for."""
        each, running = queue.replica_bytes, queue.card.slots
        if not self._most_bytes or not each or wanted <= running:
            return wanted
        states = self._batcher.model_states()
        held = sum(
            self._batcher.weight_bytes(name) for name, (state, _) in states.items() if state is not ModelState.COLD
        )
        return max(running, min(wanted, running + max(0, self._most_bytes - held) // each))

"""Lineup of model versions: which are known, which are loaded, and which devices use them. Pure.

Rule: a version is unloaded only after it has finished its queue, and loaded again when somebody asks for it; only
`retire` (an administrator) removes it. Which stay loaded where not all fit is decided by `residency`.
"""

from collections.abc import Iterable, Mapping
from math import inf

import msgspec

from cloud_hub.core.commands import LOCAL, AnswerWebSample, Command, UnloadModel
from cloud_hub.core.context import CoreContext, end_question
from cloud_hub.core.queues import ModelState
from cloud_hub.core.replica_scaling import ReplicaScaling
from cloud_hub.core.residency import ModelResidency
from cloud_hub.engine.types import ModelCard
from cloud_hub.registry.device_states import GONE, DeviceLookup
from policies.serving.batching import BatchCost
from wire.protocol.messages import HelloNote, ModelRef, RefusalReason

MODEL_USE_TTL_MS = 30 * 86_400_000  # a version that no device announced for so long counts as unused
RECORD_EVERY_MS = 86_400_000  # an unchanged Hello is recorded again after a day


class ModelUse(msgspec.Struct, frozen=True):
    """The models that a device announced in its last recorded Hello, and when (hub ms)."""

    models: tuple[ModelRef, ...]
    at_ms: int

    def versions(self) -> tuple[str, ...]:
        """Return them as MODEL@VERSION, each once."""
        return tuple(dict.fromkeys(f"{ref.name}@{ref.version}" for ref in self.models))


class ModelLineup:
    """Owns the known model versions by name, and who uses them."""

    def __init__(self, context: CoreContext, cards: tuple[ModelCard, ...]) -> None:
        self._context = context
        self._cards = {card.name: card for card in cards}
        self._residency = ModelResidency(context.settings, context.batcher)
        self.speakers: dict[str, ModelUse] = {}

    @property
    def known_models(self) -> Mapping[str, ModelCard]:
        """Cards of all known versions by `name@version`."""
        return self._cards

    @property
    def ready(self) -> tuple[ModelCard, ...]:
        """Cards of the loaded versions: they take work at once."""
        state = self._context.batcher.model_state
        return tuple(card for name, card in self._cards.items() if state(name) is ModelState.READY)

    @property
    def resting(self) -> tuple[ModelCard, ...]:
        """Cards of the versions that were scaled to zero, and are not loaded yet: they take work and wait."""
        state, resting = self._context.batcher.model_state, self._context.scaling.resting
        return tuple(self._cards[name] for name in sorted(resting) if state(name) is not ModelState.READY)

    def model_states(self) -> Mapping[str, tuple[ModelState, str]]:
        """By model: its state, and why its last load failed ("" = it did not)."""
        return self._context.batcher.model_states()

    def add_version(self, card: ModelCard) -> None:
        """Make another version known; it is loaded when something asks for it."""
        if card.name not in self._cards:
            self._context.rules.add_model(card)
            self._context.batcher.add_model(card)
            self._cards[card.name] = card

    def load(self, model: str, now: float) -> list[Command]:
        """Load a version now, and unload another if too many are loaded."""
        return self.make_room(self._context.batcher.load(model), now)

    def unload(self, model: str, now: float) -> list[Command]:
        """Unload a version after it has finished its queue; it takes no new web requests."""
        del now
        return [*self._context.batcher.unload(model)]

    def on_loaded(self, model: str, why: str, card: ModelCard | None, now: float) -> list[Command]:
        """Result of `LoadModel`. `why` "": loaded and warm, with `card` as measured.

        Else the error, and it is tried again later.
        """
        if model not in self._cards:
            return [] if why else [UnloadModel(model)]
        self._context.counts["load_failures" if why else "loads"] += 1
        self._context.batcher.on_loaded(model, why, now, card)
        return []

    def on_measured(self, model: str, cost: BatchCost, now: float) -> list[Command]:
        """Set the batch cost measured at warm-up, used until real batches give a better estimate."""
        del now
        if cost.base_s + cost.item_s < inf:
            self._context.batcher.expect_cost(model, cost)
        return []

    def make_room(self, commands: Iterable[Command], now: float) -> list[Command]:
        """The commands, with the unloads that their loads need, and without loads that wait for room."""
        return self._residency.make_room(commands, now)

    def on_wake(self, now: float) -> list[Command]:
        """Periodic, about once a second: engines that are down are checked, and replicas follow their models' load."""
        batcher, scaling = self._context.batcher, self._context.scaling
        return self.make_room([*batcher.on_wake(now), *scaling.look(now)], now)

    def on_replicas(self, model: str, count: int, why: str, now: float) -> list[Command]:
        """So many replicas of a model run now. `why`: one could not be started, "" if that is not so."""
        self._context.counts["replica_failures"] += bool(why)
        self._context.scaling.on_replicas(model, count, why, now)
        return []

    @property
    def scaling(self) -> ReplicaScaling:
        """How many replicas models are to have."""
        return self._context.scaling

    def displace_unloaded(self) -> None:
        """Count known versions for which there was no room at the start as displaced."""
        for name in self._cards:
            self._residency.displace_unloaded(name)

    @property
    def displaced(self) -> tuple[ModelCard, ...]:
        """Cards of versions without room, or scaled to zero: loaded when anything asks."""
        away = self._residency.displaced | self._context.scaling.resting
        return tuple(card for name, card in self._cards.items() if name in away)

    def retire(self, model: str, now: float) -> list[Command]:
        """Remove a version for good.

        Its waiting items end with `RefusalReason.MODEL_GONE`, as does every later request.
        """
        card = self._cards.pop(model)
        self._residency.forget(model)
        self._context.rules.remove_model(card.ref)
        loaded = self._context.batcher.model_states()[model][0] in (ModelState.READY, ModelState.CLOSING)
        commands: list[Command] = [UnloadModel(model)] if loaded else []
        for item in self._context.batcher.remove_model(model):
            question = self._context.memory.find_open(item.key)
            if item.key.device == LOCAL:
                commands += (
                    [AnswerWebSample(item.key, RefusalReason.MODEL_GONE)]
                    if self._context.batcher.claim_web_item(item.key)
                    else []
                )
            elif question is not None and self._context.memory.is_waiting(item):
                commands += end_question(question, RefusalReason.MODEL_GONE, now)
        return commands

    def record_hellos(self, hellos: Mapping[str, HelloNote], now_ms: int) -> dict[str, ModelUse]:
        """Record new Hellos; returns those that changed or were last recorded more than a day ago.

        `now_ms` in hub ms.
        """
        fresh: dict[str, ModelUse] = {}
        for device, hello in hellos.items():
            before = self.speakers.get(device)
            if before is None or before.models != hello.models or now_ms - before.at_ms > RECORD_EVERY_MS:
                fresh[device] = self.speakers[device] = ModelUse(hello.models, now_ms)
        return fresh

    def devices_using(self, model: str, now_ms: int) -> dict[str, int]:
        """Devices that use this version, with the time (hub ms) of their last Hello; see `speaking`."""
        return find_model_users(self.speakers, model, now_ms, self._context.registry)


def find_model_users(
    speakers: Mapping[str, ModelUse], model: str, now_ms: int, registry: DeviceLookup
) -> dict[str, int]:
    """Devices that announced `model` within 30 days and are not gone, with the time of that Hello (hub ms).

    `model`: name and version, as `digits@7`.
    """
    found: dict[str, int] = {}
    for name, said in sorted(speakers.items()):
        device = registry.device(name)
        gone = device is None or device.state in GONE
        if model in [f"{ref.name}@{ref.version}" for ref in said.models] and now_ms - said.at_ms <= MODEL_USE_TTL_MS:
            found |= {} if gone else {name: said.at_ms}
    return found

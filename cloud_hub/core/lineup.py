"""Which versions of which models this hub has, and which of them are loaded. Pure.

Rule: a version goes only when it has finished what it has, and comes back when a device asks for it; only what a person
retired is gone. At most `max_loaded` stay loaded: then the one that was asked for least lately makes room.
"""

from collections.abc import Mapping
from math import inf

import msgspec

from cloud_hub.core.commands import LOCAL, Command, Hand, Load, Unload
from cloud_hub.core.context import CoreContext, end
from cloud_hub.core.queues import ModelState
from cloud_hub.engine.types import ModelCard
from cloud_hub.registry.device_states import GONE, Registry
from policies.serving.batching import Cost
from wire.protocol.messages import Hello, ModelRef, Reason

SPOKEN_MS = 30 * 86_400_000  # a version that nobody spoke for so long is nobody's
AGAIN_MS = 86_400_000


class Speaker(msgspec.Struct, frozen=True):
    """What a device said last that it speaks, and when (hub time, ms)."""

    models: tuple[ModelRef, ...]
    at_ms: int


class Lineup:
    """Owns which models are known."""

    def __init__(self, context: CoreContext, cards: tuple[ModelCard, ...]) -> None:
        self._context = context
        self._cards = {card.name: card for card in cards}
        self.speakers: dict[str, Speaker] = {}

    @property
    def known(self) -> Mapping[str, ModelCard]:
        """By name and version."""
        return self._cards

    @property
    def ready(self) -> tuple[ModelCard, ...]:
        """Those that take new work without being loaded first."""
        state = self._context.batcher.state
        return tuple(card for name, card in self._cards.items() if state(name) is ModelState.READY)

    def states(self) -> Mapping[str, tuple[ModelState, str]]:
        return self._context.batcher.states()

    def know(self, card: ModelCard) -> None:
        """Another version may be asked for; it is loaded when it is."""
        if card.name not in self._cards:
            self._context.rules.know(card)
            self._context.batcher.know(card)
            self._cards[card.name] = card

    def load(self, model: str, now: float) -> list[Command]:
        del now
        return [*self._context.batcher.load(model), *self._make_room(model)]

    def unload(self, model: str, now: float) -> list[Command]:
        """Nothing new from the web; what it has is finished first."""
        del now
        return [*self._context.batcher.unload(model)]

    def on_loaded(self, model: str, why: str, card: ModelCard | None, now: float) -> list[Command]:
        """`why` "" = it is warm and takes work, as `card` says."""
        if model not in self._cards:
            return [] if why else [Unload(model)]
        self._context.counts["load_failures" if why else "loads"] += 1
        self._context.batcher.loaded(model, why, now, card)
        return []

    def measured(self, model: str, cost: Cost, now: float) -> list[Command]:
        """What its batches cost, by its warm-up: until there is work to learn it from."""
        del now
        if cost.base_s + cost.item_s < inf:
            self._context.batcher.expect(model, cost)
        return []

    def make_room(self, commands: list[Load]) -> list[Command]:
        """Before these are loaded."""
        return [command for load in commands for command in self._make_room(load.model)]

    def retire(self, model: str, now: float) -> list[Command]:
        """It is gone: whoever asks for it is told so, and what waits for it ends so."""
        card = self._cards.pop(model)
        self._context.rules.forget(card.ref)
        loaded = self._context.batcher.states()[model][0] in (ModelState.READY, ModelState.CLOSING)
        commands: list[Command] = [Unload(model)] if loaded else []
        for item in self._context.batcher.forget(model):
            question = self._context.memory.open(item.key)
            if item.key.device == LOCAL:
                commands += [Hand(item.key, Reason.MODEL_GONE)] if self._context.batcher.take_local(item.key) else []
            elif question is not None and self._context.memory.waits(item):
                commands += end(question, Reason.MODEL_GONE, now)
        return commands

    def heard(self, hellos: Mapping[str, Hello], now_ms: int) -> dict[str, Speaker]:
        """Those of which something is new, or that were last heard a day ago."""
        fresh: dict[str, Speaker] = {}
        for device, hello in hellos.items():
            before = self.speakers.get(device)
            if before is None or before.models != hello.models or now_ms - before.at_ms > AGAIN_MS:
                fresh[device] = self.speakers[device] = Speaker(hello.models, now_ms)
        return fresh

    def speaking(self, model: str, now_ms: int) -> dict[str, int]:
        """Devices that spoke this version within 30 days and are not gone, and when they said so last."""
        return speaking(self.speakers, model, now_ms, self._context.registry)

    def _make_room(self, model: str) -> list[Command]:
        most = self._context.settings.max_loaded
        loaded = [card.name for card in self.ready if card.name != model]
        if not most or len(loaded) < most:
            return []
        return [*self._context.batcher.unload(min(loaded, key=self._context.batcher.last_used))]


def speaking(speakers: Mapping[str, Speaker], model: str, now_ms: int, registry: Registry) -> dict[str, int]:
    """Devices that spoke `digits@7` within 30 days and are not gone, and when they said so last."""
    found: dict[str, int] = {}
    for name, said in sorted(speakers.items()):
        device = registry.device(name)
        gone = device is None or device.state in GONE
        if model in [f"{ref.name}@{ref.version}" for ref in said.models] and now_ms - said.at_ms <= SPOKEN_MS:
            found |= {} if gone else {name: said.at_ms}
    return found

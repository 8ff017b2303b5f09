"""Which models stay loaded when not all fit: the least recently used makes room, and loads wait for room. Pure.

Rule: at most `max_loaded` models, and at most `max_loaded_bytes` of weights. A model that has to go first computes what
waits for it, at most as many items as wait now, so that two models that are both asked for take turns and neither
starves; what comes later waits for its next turn. Where bytes are limited, a load begins only when enough is free.
"""

from collections.abc import Iterable

from cloud_hub.core.commands import Command, LoadModel
from cloud_hub.core.queues import ModelState
from cloud_hub.core.scheduler import Batcher
from cloud_hub.system.settings import HubSettings
from policies.serving.placement import format_size


class ModelResidency:
    """Chooses what is unloaded before a load, and holds loads back until there is room."""

    def __init__(self, settings: HubSettings, batcher: Batcher) -> None:
        self._most = settings.max_loaded
        self._most_bytes = settings.max_loaded_bytes
        self._batcher = batcher
        self._waiting: list[str] = []  # models in state LOADING whose load has not begun
        self.displaced: set[str] = set()  # unloaded to make room: loaded again when anything asks

    def make_room(self, commands: Iterable[Command], now: float) -> list[Command]:
        """Return the commands with unloads for their loads, and without the loads that have to wait for room."""
        found: list[Command] = []
        for command in commands:
            found += self._admit_load(command.model, now) if isinstance(command, LoadModel) else [command]
        return [*found, *self._begin_waiting()]

    def displace_unloaded(self, model: str) -> None:
        """Count a version that is not loaded after the start as displaced, where it was the limit that kept it out.

        By its stored size, as the start counts; what is loaded by then may take less, in a narrower precision.
        """
        limited = bool(self._most or self._most_bytes) and not self._exceeds({model})
        if limited and model not in self._names(ModelState.READY):
            self.displaced.add(model)

    def forget(self, model: str) -> None:
        """Drop a model that was removed for good."""
        self.displaced.discard(model)
        self._waiting = [each for each in self._waiting if each != model]

    def _admit_load(self, model: str, now: float) -> list[Command]:
        """Load a model now or hold it back; one that never fits fails, with what to change."""
        need = self._batcher.weight_bytes(model)
        if self._most_bytes and need > self._most_bytes:
            why = f"its weights take {format_size(need)}, loaded_gib allows {format_size(self._most_bytes)} for all"
            self._batcher.on_loaded(model, why, now)
            return []
        self.displaced.discard(model)
        unloads = self._unload_others(model)
        if self._fits(model):
            return [LoadModel(model), *unloads]
        self._waiting.append(model)
        return unloads

    def _unload_others(self, model: str) -> list[Command]:
        """Unload the least recently used until the model fits beside what then stays."""
        commands: list[Command] = []
        ready = [name for name in self._names(ModelState.READY) if name != model]
        for name in sorted(ready, key=self._batcher.last_used):
            staying = [*self._names(ModelState.READY), *self._names(ModelState.LOADING)]
            over = self._most and len({*staying, model}) > self._most
            if not over and not self._exceeds({*staying, model}):
                break
            self.displaced.add(name)
            commands += self._batcher.unload(name)
        return commands

    def _begin_waiting(self) -> list[Command]:
        """Begin the loads for which there is room now, in the order they were asked for."""
        commands: list[Command] = []
        while self._waiting:
            commands += self._unload_others(self._waiting[0])  # one that was just loaded can make room by now
            if not self._fits(self._waiting[0]):
                break
            commands.append(LoadModel(self._waiting.pop(0)))
        return commands

    def _fits(self, model: str) -> bool:
        held = {name for state in ModelState if state is not ModelState.COLD for name in self._names(state)}
        return not self._exceeds((held - set(self._waiting)) | {model})

    def _exceeds(self, models: Iterable[str]) -> bool:
        return bool(self._most_bytes) and sum(map(self._batcher.weight_bytes, models)) > self._most_bytes

    def _names(self, state: ModelState) -> list[str]:
        return [name for name, (found, _) in self._batcher.model_states().items() if found is state]

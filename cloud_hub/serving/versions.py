"""Management of model versions while the hub serves: list, load, unload, retire.

Rule: no request is lost by any of it: a version finishes its queue before it is unloaded, and is warm before it serves.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping

from cloud_hub.core.lineup import ModelLineup, ModelUse
from cloud_hub.core.queues import ModelState
from cloud_hub.core.web_requests import InferRefusedError, StoredModel
from cloud_hub.engine.types import ModelCard
from cloud_hub.serving.executor import EnginePool
from cloud_hub.storage.versions import ModelUsageStore
from models.runtime.feature_codec import CodecError
from wire.protocol.messages import RefusalReason

_OIP_STATES = {
    ModelState.READY: "READY",
    ModelState.LOADING: "LOADING",
    ModelState.CLOSING: "UNLOADING",
    ModelState.COLD: "UNAVAILABLE",
}
_POLL_S = 0.01
PATIENCE_S = 30.0  # limit of waiting for a load, and for an unload to finish its queue

CoreCall = Callable[..., None]


class ModelInUseError(Exception):
    """A version cannot be retired while devices use it. `devices`: time of each one's last Hello (hub ms)."""

    def __init__(self, devices: dict[str, int]) -> None:
        super().__init__(f"{len(devices)} devices still use it")
        self.devices = devices


class VersionManager:
    """Lists, loads, unloads and retires model versions.

    `hear` passes an event to the core and executes the commands it returns.
    """

    def __init__(self, lineup: ModelLineup, engines: EnginePool, hear: CoreCall, spoken: ModelUsageStore) -> None:
        self._lineup = lineup
        self._engines = engines
        self._hear = hear
        self._spoken = spoken
        lineup.speakers.update(spoken.read_uses())

    def list_models(self) -> list[StoredModel]:
        """Every version of every model, loaded or not."""
        states = self._lineup.model_states()
        return [
            StoredModel(
                card.ref.name,
                str(card.ref.version),
                _OIP_STATES[states[name][0]],
                states[name][1] or _explain_state(states[name][0]),
            )
            for name, card in sorted(self._lineup.known_models.items())
        ]

    def describe(self, model: str) -> ModelCard:
        """Card of a version, loaded or not. InferRefusedError(MODEL_GONE) if it is unknown."""
        return self._lineup.known_models[self._resolve_name(model)]

    async def load(self, model: str) -> None:
        """Load a version and wait until it is ready.

        InferRefusedError: MODEL_GONE if there is no such bundle, ENGINE if it does not become ready.
        """
        await self.refresh_known()
        name = self._resolve_name(model)
        self._hear(self._lineup.load, name)
        await self._wait_while(name, ModelState.LOADING)
        if self._lineup.model_states()[name][0] is not ModelState.READY:
            raise InferRefusedError(RefusalReason.ENGINE)

    async def unload(self, model: str) -> None:
        """Unload a version and wait until its queue is finished, at most `PATIENCE_S`.

        InferRefusedError(MODEL_GONE) if it is unknown.
        """
        name = self._resolve_name(model)
        self._hear(self._lineup.unload, name)
        await self._wait_while(name, ModelState.CLOSING)

    def devices_using(self, model: str, now_ms: int) -> dict[str, int]:
        """Devices that use a version, with the time of their last Hello (hub ms).

        InferRefusedError(MODEL_GONE) if it is unknown.
        """
        return self._lineup.devices_using(self._resolve_name(model), now_ms)

    async def retire(self, model: str, now_ms: int, *, force: bool = False) -> dict[str, int]:
        """Retire a version for good, at every hub and also across restarts; returns the devices that used it.

        ModelInUseError if there are any, unless forced; SQLAlchemyError if it cannot be written.
        """
        name = self._resolve_name(model)
        speaking = self._lineup.devices_using(name, now_ms)
        if speaking and not force:
            raise ModelInUseError(speaking)
        await asyncio.to_thread(self._spoken.retire, name, now_ms)
        self.take_retired((name,))
        return speaking

    def take_retired(self, models: Iterable[str]) -> None:
        """These versions were retired, here or by another hub: those that are known are removed."""
        for name in models:
            if name in self._lineup.known_models:
                self._hear(self._lineup.retire, name)

    def take_uses(self, found: Mapping[str, ModelUse]) -> None:
        """Take in which models devices use that another hub has heard; what was heard later here stays."""
        known = self._lineup.speakers
        known.update({name: use for name, use in found.items() if name not in known or use.at_ms >= known[name].at_ms})

    async def remember_uses(self, speakers: Mapping[str, ModelUse]) -> None:
        """Store which models devices use. SQLAlchemyError if it cannot be written."""
        if speakers:
            await asyncio.to_thread(self._spoken.put_uses, speakers)

    async def read_initial(self) -> None:
        """Make the versions in the bundle folders known at the start; those without room wait to be asked for."""
        await self.refresh_known()
        self._lineup.displace_unloaded()

    async def refresh_known(self) -> None:
        """Make the versions in the bundle folders known, except retired ones."""
        retired = self._spoken.retired_models()
        for card in await self._engines.read_loadable():
            if card.name not in self._lineup.known_models and card.name not in retired:
                self._add_card(card)

    def _add_card(self, card: ModelCard) -> None:
        try:
            self._lineup.add_version(card)
        except CodecError:
            return  # this hub lacks the codec: the bundle is ignored

    def _resolve_name(self, model: str) -> str:
        """Resolve `digits@7`, or `digits` to its newest version.

        InferRefusedError(MODEL_GONE) if it is unknown.
        """
        named = [card for card in self._lineup.known_models.values() if model in (card.name, card.ref.name)]
        if not named:
            raise InferRefusedError(RefusalReason.MODEL_GONE)
        return max(named, key=lambda card: card.ref.version).name

    async def _wait_while(self, name: str, state: ModelState) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                while self._lineup.model_states().get(name, (None,))[0] is state:  # noqa: ASYNC110 - rare, on an administrator's request
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            return  # the state change continues in the background


def _explain_state(state: ModelState) -> str:
    return "unloaded: it is loaded when somebody asks for it" if state is ModelState.COLD else ""

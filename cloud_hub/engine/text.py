"""The engine of a text model: its card and its template. It computes nothing: `serving/text.py` asks a language model.

Rule: a version is loaded only where the hub has the language model that it names; whether that answers now is another
matter, and questions wait for it.
"""

from collections.abc import Mapping, Sequence

import msgspec

from cloud_hub.engine.base import Engine, EngineError, EngineHealth, EngineState
from cloud_hub.engine.types import EngineSetup, ModelCard, WorkItem
from models.bundle.text_part import TextTemplate
from wire.protocol.messages import Prediction


class TextEngine:
    """A text model as the hub serves it. `slots`: questions that are asked at once, by language model."""

    inline = False
    depth = 1
    ranks: tuple[tuple[int, float], ...] = ()
    setup = EngineSetup(device="llm")

    def __init__(self, card: ModelCard, template: TextTemplate, slots: Mapping[str, int]) -> None:
        self.card = msgspec.structs.replace(card, max_batch=1, slots=slots.get(template.llm, 1))
        self.template = template
        self._known = frozenset(slots)
        self._state = EngineState.NEW

    @property
    def replicas(self) -> Sequence[Engine]:
        return (self,)

    def start(self) -> None:
        """EngineError with one line if the hub has no such language model."""
        if self.template.llm not in self._known:
            there = ", ".join(sorted(self._known)) or "none"
            raise EngineError(f"{self.card.name}: asks the language model {self.template.llm!r}, [[llm]] has {there}")
        self._state = EngineState.READY

    def warm(self) -> None:
        """Nothing is computed here."""

    def infer(self, batch: Sequence[WorkItem]) -> list[Prediction]:
        """EngineError: a language model is asked on the event loop, by `serving/text.py`."""
        raise EngineError(f"{self.card.name}: {len(batch)} texts are for a language model")

    def health(self) -> EngineHealth:
        return EngineHealth(self._state)

    def drain(self) -> None:
        self._state = EngineState.DRAINING

    def stop(self) -> None:
        self._state = EngineState.STOPPED

    def sample(self) -> WorkItem:
        """A work item with a short text."""
        raise EngineError(f"{self.card.name}: its self test asks the language model itself")

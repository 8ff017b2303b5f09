"""What a caller says beside the values of a sample: words are checked, the data class becomes facts for the core.

Whom a sample is about, as a keyed hash: only this device can make it, and so only here can a name be looked for.

Law: the name itself is never stored, sent or logged.
"""

import hmac
from hashlib import sha256

from edge_agent.core.commands import Facts
from edge_agent.core.records import Sample
from edge_agent.storage.outbox import Vault
from edge_agent.system.clock import HubClock
from models.runtime.runner import SampleError

MAX_CHARS = 256
PURPOSE = b"subject"


class Subjects:
    """Names become 32 bytes; "" is nobody and becomes nothing."""

    def __init__(self, vault: Vault) -> None:
        self._key = vault.derived(PURPOSE)

    def of(self, name: str) -> bytes:
        return hmac.digest(self._key, name.encode(), sha256) if name else b""


MAX_TEXT_CHARS = 128
_CLASSES_KEPT = 64  # classes are few; a caller that invents them may not fill our memory


def check_words(sample: Sample) -> None:
    """SampleError if data class or trace are not short ASCII."""
    if len(sample.subject) > MAX_CHARS:
        raise SampleError(f"a subject has at most {MAX_CHARS} characters")
    for text in (sample.data_class, sample.trace):
        if len(text) > MAX_TEXT_CHARS or not text.isascii():
            raise SampleError(f"data class and trace are ASCII of at most {MAX_TEXT_CHARS} characters")


class DataClasses:
    """Facts by data class, made anew after `clear`: they hold the day."""

    def __init__(self, clock: HubClock) -> None:
        self._clock = clock
        self._facts: dict[str, Facts] = {}

    def of(self, data_class: str) -> Facts:
        facts = self._facts.get(data_class)
        if facts is None:
            if len(self._facts) > _CLASSES_KEPT:
                self._facts.clear()
            facts = self._facts[data_class] = Facts(data_class, self._clock.day())
        return facts

    def clear(self) -> None:
        self._facts.clear()

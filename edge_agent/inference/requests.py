"""Checks what callers send with a sample, hashes subjects, and caches the core's sample attributes by data class.

Rule: the name of a subject is never stored, sent or logged; only this device can compute its keyed hash.
"""

import hmac
from hashlib import sha256

from edge_agent.question.commands import SampleAttributes
from edge_agent.question.records import Sample
from edge_agent.storage.outbox import PayloadVault
from edge_agent.system.clock import HubClock
from models.runtime.runner import SampleError

MAX_SUBJECT_CHARS = 256
SUBJECT_PURPOSE = b"subject"


class SubjectHasher:
    """Hashes subject names to 32 bytes with a key of this device (HMAC-SHA-256)."""

    def __init__(self, vault: PayloadVault) -> None:
        self._key = vault.derive_key(SUBJECT_PURPOSE)

    def hash_subject(self, name: str) -> bytes:
        """The keyed hash of a name; b"" for "", which is nobody."""
        return hmac.digest(self._key, name.encode(), sha256) if name else b""


MAX_TEXT_CHARS = 128
_CLASSES_KEPT = 64  # classes are few; bounds the memory if a caller makes up new ones


def check_sample_texts(sample: Sample) -> None:
    """Validate a sample's texts. SampleError if data class or trace are not short ASCII or the subject is too long."""
    if len(sample.subject) > MAX_SUBJECT_CHARS:
        raise SampleError(f"a subject has at most {MAX_SUBJECT_CHARS} characters")
    data_class, trace = sample.data_class, sample.trace  # written out: every answer passes here
    if len(data_class) > MAX_TEXT_CHARS or len(trace) > MAX_TEXT_CHARS or not (data_class + trace).isascii():
        raise SampleError(f"data class and trace are ASCII of at most {MAX_TEXT_CHARS} characters")


class SampleAttributesCache:
    """Cache of sample attributes by data class. Clear it when the day changes, which they contain."""

    def __init__(self, clock: HubClock) -> None:
        self._clock = clock
        self._facts: dict[str, SampleAttributes] = {}

    def attributes_for(self, data_class: str) -> SampleAttributes:
        """The attributes for this data class, with the current day."""
        facts = self._facts.get(data_class)
        if facts is None:
            if len(self._facts) > _CLASSES_KEPT:
                self._facts.clear()
            facts = self._facts[data_class] = SampleAttributes(data_class, self._clock.hub_day())
        return facts

    def clear(self) -> None:
        """Forget all, for a new day."""
        self._facts.clear()

"""Whom a sample is about, as a keyed hash: only this device can make it, and so only here can a name be looked for.

Law: the name itself is never stored, sent or logged.
"""

import hmac
from hashlib import sha256

from edge_agent.storage.merging_outbox_vault import Vault

MAX_CHARS = 256
PURPOSE = b"subject"


class Subjects:
    """Names become 32 bytes; "" is nobody and becomes nothing."""

    def __init__(self, vault: Vault) -> None:
        self._key = vault.derived(PURPOSE)

    def of(self, name: str) -> bytes:
        return hmac.digest(self._key, name.encode(), sha256) if name else b""

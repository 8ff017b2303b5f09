"""The hub's HPKE key changes every week and is destroyed after two: then what was sealed to it is closed for good.

Rule: a key is destroyed only where devices learn the next one by themselves; its age counts from when this hub first
knew it, so that a folder that was copied back makes no old key young.
"""

from collections.abc import Callable
from pathlib import Path

import msgspec

from cloud_hub.security.hub_keys import HubCard, HubKeys, load_or_create, newest_number, retire, rotate
from wire.process.exit_codes import Exit, ExitError
from wire.process.files import read_private, write_private

DAY_MS = 86_400_000
CHANGED_AFTER_MS = 7 * DAY_MS
DESTROYED_AFTER_MS = 14 * DAY_MS
BORN_FILE = "born.json"


class KeyChange:
    """`apply` is given every new set of keys: whoever opens questions or tells devices of the key."""

    def __init__(self, folder: Path, card: HubCard, apply: Callable[[HubKeys, HubCard], None]) -> None:
        self._folder = folder
        self._card = card
        self._apply = apply

    def turn(self, now_ms: int) -> tuple[HubCard, int] | None:
        """The card with its serial if there is a new key or one less, else None.

        ExitError(DISK) if it cannot be written.
        """
        keys = load_or_create(self._folder)
        born = self._born(keys, now_ms)
        old = [key for key in keys.hpke if key != keys.current and now_ms - born[key.hex()] >= DESTROYED_AFTER_MS]
        due = now_ms - born[keys.current.hex()] >= CHANGED_AFTER_MS
        if not old and not due:
            return None
        for key in old:
            keys = retire(self._folder, key)
        if due:
            keys = rotate(self._folder)
        self._born(keys, now_ms)
        self._card = msgspec.structs.replace(self._card, hpke_key=keys.hpke_public)
        self._apply(keys, self._card)
        return self._card, newest_number(self._folder)

    def _born(self, keys: HubKeys, now_ms: int) -> dict[str, int]:
        """When each key was first known, by its id; a new one from now on."""
        path = self._folder / BORN_FILE
        try:
            found = msgspec.json.decode(read_private(path), type=dict[str, int]) if path.exists() else {}
        except msgspec.DecodeError:
            raise ExitError(Exit.CREDENTIALS, f"{path} is damaged: restore it from a backup") from None
        known = {key.hex(): min(found.get(key.hex(), now_ms), now_ms) for key in keys.hpke}
        if known != found:
            write_private(path, msgspec.json.encode(known))
        return known

"""Maintenance tasks of the update repository: renew signatures, rotate the hub's HPKE key, notify devices of news.

Rule: maintenance never waits for people. What only they can sign is logged, once a day, while there is time.
Rule: a hint carries no trust and nothing rests on it: a lost one costs a device half an hour. A fleet is notified
little by little, so that it does not come to fetch all at once.
Rule: the HPKE key changes every week and is destroyed after two, but only where devices learn the next one by
themselves; its age counts from when this hub first knew it, so that a folder that was copied back makes no old key
young.
"""

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import msgspec

from cloud_hub.region.leases import RegionTask
from cloud_hub.repository.publish import publish_hub_keys
from cloud_hub.repository.repository import Repository
from cloud_hub.security.hub_keys import (
    HubCard,
    HubKeys,
    load_or_create_keys,
    newest_key_number,
    retire_hpke_key,
    rotate_hpke_key,
)
from models.signing.request import RequestError
from models.signing.roles import KEYS
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.files import read_private_file, write_private_file
from wire.process.logging import JsonLog, describe_error, safe_name

RENEW_INTERVAL_S = 60.0
_LOOK_S = 0.5
_WARN_EVERY_S = 86_400.0


class NumberedCard(NamedTuple):
    """The hub's card with its public keys; `serial` counts the hub's HPKE keys."""

    card: HubCard
    serial: int


KeyRotation = Callable[[int], NumberedCard | None]  # hub time in ms -> the card, if it changed


class RepositoryMaintainer:
    """Renews the repository's signatures and publishes the hub's keys before they expire.

    `now_ms` is hub time, which never runs backwards.
    `turn` rotates them when it is time; it is only called where a hub can publish the new one. `committed` gives, on
    the event loop, the version of each model family that the fleet has committed; None while that is not known.
    """

    def __init__(
        self,
        repository: Repository,
        card: NumberedCard,
        now_ms: Callable[[], int],
        log: JsonLog,
        *,
        turn: KeyRotation | None = None,
        committed: Callable[[], Mapping[str, int] | None] = lambda: None,
    ) -> None:
        self._repository = repository
        self._turn = turn
        self._committed = committed
        self._card = card
        self._now_ms = now_ms
        self._log = log
        self._spoke_s = -_WARN_EVERY_S

    async def run(self, does: Callable[[RegionTask], bool], every_s: float = RENEW_INTERVAL_S) -> None:
        """Rotate and renew every `every_s` seconds for ever; `does`: whether this hub does a task of its region.

        A hub that comes to do one begins at once. A full disk or another writer at work is logged and tried again.
        """
        rotated_s = renewed_s = -math.inf
        while True:
            now_s = time.monotonic()
            if now_s - rotated_s >= every_s and does(RegionTask.ROTATION):
                rotated_s = now_s
                await asyncio.to_thread(self.rotate_once)
            if now_s - renewed_s >= every_s and does(RegionTask.KEEPER):
                renewed_s = now_s
                await asyncio.to_thread(self.renew_once, self._read_committed())
            await asyncio.sleep(_LOOK_S)

    def use_card(self, card: NumberedCard) -> None:
        """Publish this card from now on: another hub of the region has changed the key."""
        self._card = card

    def rotate_once(self) -> None:
        """Rotate the hub's keys if it is time, where devices learn the next one by themselves."""
        try:
            if self._turn is None or not self._repository.has_root or not self._publishes_keys():
                return
            turned = self._turn(self._now_ms())
        except (ExitError, RequestError, OSError) as error:
            self._log.error("hub_keys", error=describe_error(error))
            return
        if turned is not None:
            self._card = turned
            self._log.info("hub_key_changed", serial=turned.serial)

    def _read_committed(self) -> Mapping[str, int] | None:
        try:
            return self._committed()
        except (ExitError, RequestError, OSError) as error:  # another process is at work on the repository
            self._log.error("repository", error=describe_error(error))
            return None

    def renew_once(self, committed: Mapping[str, int] | None = None) -> None:
        """Renew, publish and warn once. `committed`: version by model family; None: as it was published."""
        now = datetime.fromtimestamp(self._now_ms() / 1000, UTC)
        try:
            if not self._repository.has_root:
                return
            for role in self._repository.renew_expiring(now):
                self._log.info("resigned", role=safe_name(role))
            self._publish_keys(now, committed)
            self._warn_expiring(now)
        except (ExitError, RequestError, OSError) as error:
            self._log.error("repository", error=describe_error(error))

    def _publishes_keys(self) -> bool:
        targets = self._repository.read_state().targets
        return targets is not None and KEYS in self._repository.hub_signed_roles(targets)

    def _publish_keys(self, now: datetime, committed: Mapping[str, int] | None) -> None:
        if not self._publishes_keys():
            return
        published = publish_hub_keys(self._repository, self._card.card, self._card.serial, now, committed)
        if published:
            self._log.info("published", target=safe_name(published.path), version=published.version)

    def _warn_expiring(self, now: datetime) -> None:
        if now.timestamp() - self._spoke_s < _WARN_EVERY_S:
            return
        for role, expires in self._repository.expiring_roles(now).items():
            self._spoke_s = now.timestamp()
            left_days = (expires - now).days
            self._log.warning("sign_again_soon", role=safe_name(role), left_days=left_days)


WATCH_INTERVAL_S = 1.0
DEVICES_PER_S = 20.0


class UpdateNotifier:
    """Watches the repository for a new snapshot and sends every device a hint, since publishing needs no running hub.

    `devices` names those to be notified, `hint` notifies one.
    """

    def __init__(
        self, repository: Repository, devices: Callable[[], tuple[str, ...]], hint: Callable[[str], None], log: JsonLog
    ) -> None:
        self._repository = repository
        self._devices = devices
        self._hint = hint
        self._log = log
        self._known = self._read_version()

    async def run(self, look_s: float = WATCH_INTERVAL_S, per_s: float = DEVICES_PER_S) -> None:
        """Look every `look_s` seconds and notify at most `per_s` devices a second, for ever."""
        while True:
            await asyncio.sleep(look_s)
            if self._has_news():
                await self._notify_devices(per_s)

    async def _notify_devices(self, per_s: float) -> None:
        devices = self._devices()
        self._log.info("hinting", devices=len(devices))
        for device in devices:
            self._hint(device)
            await asyncio.sleep(1 / per_s)

    def _has_news(self) -> bool:
        """Whether the snapshot rose.

        One that only was signed again counts too: a needless hint costs one small request.
        """
        before, self._known = self._known, self._read_version()
        return self._known > before

    def _read_version(self) -> int:
        """Return the newest snapshot's version; 0 while there is none, or while another process is at work on it."""
        try:
            return self._repository.snapshot_version()
        except ExitError:
            return 0


DAY_MS = 86_400_000
CHANGED_AFTER_MS = 7 * DAY_MS
DESTROYED_AFTER_MS = 14 * DAY_MS
BORN_FILE = "born.json"


def reload_card(folder: Path, card: HubCard) -> tuple[HubKeys, NumberedCard]:
    """Read the keys of a folder again; returns them and the card with their public halves."""
    keys = load_or_create_keys(folder)
    fresh = msgspec.structs.replace(card, hpke_key=keys.hpke_public, signing_key=keys.signing_public)
    return keys, NumberedCard(fresh, newest_key_number(folder))


class HubKeyRotation:
    """Rotation of the hub's HPKE key.

    `apply` is called with every new set of keys, to open questions and to tell devices.
    """

    def __init__(self, folder: Path, card: HubCard, apply: Callable[[HubKeys, HubCard], None]) -> None:
        self._folder = folder
        self._card = card
        self._apply = apply

    def rotate_if_due(self, now_ms: int) -> NumberedCard | None:
        """Return the card with its serial if there is a new key or one less, else None.

        ExitError(DISK) if unwritable.
        """
        keys = load_or_create_keys(self._folder)
        born = self._first_seen(keys, now_ms)
        old = [key for key in keys.hpke if key != keys.current and now_ms - born[key.hex()] >= DESTROYED_AFTER_MS]
        due = now_ms - born[keys.current.hex()] >= CHANGED_AFTER_MS
        if not old and not due:
            return None
        for key in old:
            keys = retire_hpke_key(self._folder, key)
        if due:
            keys = rotate_hpke_key(self._folder)
        self._first_seen(keys, now_ms)
        self._card = msgspec.structs.replace(self._card, hpke_key=keys.hpke_public)
        self._apply(keys, self._card)
        return NumberedCard(self._card, newest_key_number(self._folder))

    def _first_seen(self, keys: HubKeys, now_ms: int) -> dict[str, int]:
        """Return when each key was first known, by its id; a new one is recorded as of now."""
        path = self._folder / BORN_FILE
        try:
            found = msgspec.json.decode(read_private_file(path), type=dict[str, int]) if path.exists() else {}
        except msgspec.DecodeError:
            raise ExitError(ExitCode.CREDENTIALS, f"{path} is damaged: restore it from a backup") from None
        known = {key.hex(): min(found.get(key.hex(), now_ms), now_ms) for key in keys.hpke}
        if known != found:
            write_private_file(path, msgspec.json.encode(known))
        return known

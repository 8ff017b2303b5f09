"""Keeps the update repository alive while the hub runs: signs again before anything expires, publishes the hub's keys.

Rule: it never waits for people. What only they can sign is said in the log, once a day, while there is time.
"""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime

from cloud_hub.repository.publish import publish_hub_keys
from cloud_hub.repository.repository import Repository
from cloud_hub.security.hub_keys import HubCard
from models.signing.merging_roles_roles import KEYS
from models.signing.request import RequestError
from wire.process.exit_codes import ExitError
from wire.process.logging import Log, fault, name

EVERY_S = 60.0
_WORDS_EVERY_S = 86_400.0
Turn = Callable[[int], tuple[HubCard, int] | None]  # hub time in ms -> the card and its serial, if they changed


class Keeper:
    """`now_ms` is hub time, which never runs backwards; `serial` counts the hub's HPKE keys.

    `turn` changes them when it is time; it is only asked where this hub can tell its devices of the new one.
    """

    def __init__(
        self,
        repository: Repository,
        card: HubCard,
        serial: int,
        now_ms: Callable[[], int],
        log: Log,
        *,
        turn: Turn | None = None,
    ) -> None:
        self._repository = repository
        self._turn = turn
        self._card = card
        self._serial = serial
        self._now_ms = now_ms
        self._log = log
        self._spoke_s = -_WORDS_EVERY_S

    async def run(self, every_s: float = EVERY_S) -> None:
        """For ever. A full disk or another writer at work is said and tried again."""
        while True:
            await asyncio.to_thread(self.once)
            await asyncio.sleep(every_s)

    def once(self) -> None:
        """One look at everything."""
        now = datetime.fromtimestamp(self._now_ms() / 1000, UTC)
        try:
            if not self._repository.begun:
                return
            for role in self._repository.tend(now):
                self._log.info("resigned", role=name(role))
            self._publish_keys(now)
            self._warn(now)
        except (ExitError, RequestError, OSError) as error:
            self._log.error("repository", error=fault(error))

    def _publish_keys(self, now: datetime) -> None:
        targets = self._repository.state().targets
        if targets is None or KEYS not in self._repository.at_hub(targets):
            return
        turned = self._turn(int(now.timestamp() * 1000)) if self._turn else None
        if turned is not None:
            self._card, self._serial = turned
            self._log.info("hub_key_changed", serial=self._serial)
        published = publish_hub_keys(self._repository, self._card, self._serial, now)
        if published:
            self._log.info("published", target=name(published.path), version=published.version)

    def _warn(self, now: datetime) -> None:
        if now.timestamp() - self._spoke_s < _WORDS_EVERY_S:
            return
        for role, expires in self._repository.waning(now).items():
            self._spoke_s = now.timestamp()
            left_days = (expires - now).days
            self._log.warning("sign_again_soon", role=name(role), left_days=left_days)

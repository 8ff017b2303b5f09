"""Renews the device's TLS certificate at about two thirds of its life, for as long as the agent runs.

Rule: the request is signed by the identity key (Ed25519) of the enrolment, so an expired certificate renews like any
other. The old pair stays until the new one is complete on disk; a renewal that fails costs only a retry, and local
answers never wait for it.
"""

import asyncio
import http
import random
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from edge_agent.identity.identity import Identity, load_identity
from edge_agent.system.clock import HubClock
from policies.monitoring.backoff import compute_delay
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.files import PACKAGES_FOLDER
from wire.process.logging import JsonLog, safe_name
from wire.process.proxy import NO_PROXY, ForwardProxy

RENEW_AT = 2 / 3  # share of the certificate's life after which it is renewed, on average
RENEW_SPREAD = 0.1  # width of the random spread around it: devices enrolled in one hour do not all renew in one hour
RETRY_BASE_S = 30.0
RETRY_CAP_S = 3600.0
MIN_INTERVAL_S = 600.0  # least time from one renewal to the next
CHILD_TIMEOUT_S = 120.0
CHECK_EVERY_S = 60.0  # longest sleep, as the clock may be corrected meanwhile
Reconnect = Callable[[], Awaitable[None]]
RenewFunction = Callable[[Identity], Awaitable[Identity]]
_STALE_LINK = ("certificate", "refused before CONNACK", "SSL")


def compute_due_ms(certificate_ms: tuple[int, int], dice: float) -> int:
    """When to renew a certificate, in hub milliseconds; 0 = at once, if its life is unknown.

    `certificate_ms`: its begin and end. `dice`: random number in 0..1, drawn once per certificate.
    """
    begins, ends = certificate_ms
    if ends <= begins:
        return 0
    return begins + int((ends - begins) * (RENEW_AT + RENEW_SPREAD * (dice - 0.5)))


async def renew_in_child(identity: Identity, proxy: ForwardProxy = NO_PROXY) -> Identity:
    """Run one renewal in a child process (`edge_agent.identity.renewal_worker`).

    Returns the identity as it is on disk afterwards; ExitError with the reason if it failed or took longer than 120 s.
    """
    folder = (identity.folder or Path()).absolute()
    words = (sys.executable, "-P", "-m", "edge_agent.identity.renewal_worker", str(folder), *proxy)
    nowhere = asyncio.subprocess.DEVNULL
    try:
        child = await asyncio.create_subprocess_exec(
            *words, stdin=nowhere, stdout=nowhere, stderr=asyncio.subprocess.PIPE, cwd=PACKAGES_FOLDER
        )
    except OSError as error:
        raise ExitError(ExitCode.INTERNAL, f"no renewal could be started: {error.strerror}") from None
    try:
        async with asyncio.timeout(CHILD_TIMEOUT_S):
            _, said = await child.communicate()
    except TimeoutError:
        raise ExitError(ExitCode.HUB, f"the renewal did not end within {CHILD_TIMEOUT_S:g} s") from None
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    if child.returncode:
        code = ExitCode(child.returncode) if child.returncode in set(ExitCode) else ExitCode.INTERNAL
        last = said.decode(errors="replace").strip().rpartition("\n")[2]
        raise ExitError(code, last[:300] or "the renewal process failed without an error message")
    return load_identity(folder)


class Renewer:
    """Background task that keeps the certificate fresh. `identity` is always the one on disk."""

    def __init__(
        self,
        identity: Identity,
        clock: HubClock,
        log: JsonLog,
        dice: Callable[[], float] = random.random,
        errand: RenewFunction = renew_in_child,
    ) -> None:
        self.identity = identity
        self.error = ""
        self.renewals = 0
        self._clock = clock
        self._log = log
        self._dice = dice
        self._errand = errand
        self._due_ms = compute_due_ms(identity.certificate_ms, dice())
        self._failures = 0
        self._not_before_s = 0.0
        self._hurried = False

    def on_link_refused(self, error: str) -> None:
        """The broker refused the TLS handshake: renew early if the error points at our certificate."""
        self._hurried = self._hurried or any(word in error for word in _STALE_LINK)

    async def run(self, reconnect: Reconnect, look_every_s: float = CHECK_EVERY_S) -> None:
        """Renew whenever it is due, until cancelled; `reconnect` is called after each renewal."""
        while True:
            if self._is_due():
                await self._try_renewal(reconnect)
            await asyncio.sleep(self._pause_s(look_every_s))

    def status_fields(self) -> dict[str, Any]:
        """Fields of the status: `certificate_ends_ms`, `renewal_due_ms`, `renewal_error`, `renewals`. JSON-able."""
        return {
            "certificate_ends_ms": self.identity.certificate_ms[1],
            "renewal_due_ms": self._due_ms,
            "renewal_error": self.error,
            "renewals": self.renewals,
        }

    def alarms(self) -> set[str]:
        """`certificate_expired` while ours has expired, `renewal_refused` while the hub refuses to renew it."""
        expired = 0 < self.identity.certificate_ms[1] <= self._clock.sure_ms()
        refused = self.error.startswith(f"the hub refused ({http.HTTPStatus.FORBIDDEN})")
        return ({"certificate_expired"} if expired else set()) | ({"renewal_refused"} if refused else set())

    def _is_due(self) -> bool:
        """Whether to try now: due or hurried, and no retry pause in force."""
        return (self._hurried or self._clock.hub_ms() >= self._due_ms) and self._clock.now() >= self._not_before_s

    def _pause_s(self, look_every_s: float) -> float:
        due_s = max((self._due_ms - self._clock.hub_ms()) / 1000, self._not_before_s - self._clock.now())
        return min(look_every_s, max(0.05, due_s))

    async def _try_renewal(self, reconnect: Reconnect) -> None:
        """One attempt; on success sets the clock to the hub's signed time and reconnects."""
        try:
            self.identity = await self._errand(self.identity)
        except ExitError as stop:
            self._on_failure(stop)
            return
        self._clock.on_signed_time(self.identity.hub_time_ms)
        self._due_ms = compute_due_ms(self.identity.certificate_ms, self._dice())
        self._failures, self._hurried, self.error = 0, False, ""
        # a broker that refuses the new certificate too must not cause renewals in a loop
        self._not_before_s = self._clock.now() + min(MIN_INTERVAL_S, self._life_s() / 10)
        self.renewals += 1
        self._log.info("certificate_renewed", ends_ms=self.identity.certificate_ms[1])
        await reconnect()

    def _on_failure(self, stop: ExitError) -> None:
        """Record a failure and schedule the retry, with backoff and scaled to the certificate's life."""
        self.error = str(stop)[:200]
        base_s = min(RETRY_BASE_S, max(0.1, self._life_s() / 100))
        self._not_before_s = (
            self._clock.now() + base_s / 2 + compute_delay(self._failures, self._dice(), base_s, RETRY_CAP_S)
        )
        self._failures += 1
        self._hurried = False
        self._log.warning(
            "renewal_failed", code=stop.code, failures=self._failures, hub=safe_name(self.identity.hub_url)
        )

    def _life_s(self) -> float:
        begins, ends = self.identity.certificate_ms
        return max(0.0, (ends - begins) / 1000)

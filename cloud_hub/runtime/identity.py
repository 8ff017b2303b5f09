"""Identity service of a running hub: enrolment, renewal, CA rotation and eviction, joined with the broker's address.

Rule: it owns no rows (the registry does) and no keys (the authorities do); it is where they meet broker and web API.
"""

import asyncio
import functools
import ssl
import time
from collections.abc import Awaitable, Callable
from typing import Any

from cloud_hub.database.offload import OrderedWork
from cloud_hub.enrollment.ca_rotation import CaRotation
from cloud_hub.enrollment.enrollment import EnrollmentService, HardwareList
from cloud_hub.enrollment.eviction import SessionEvictor, build_stand_in_context
from cloud_hub.enrollment.rate_limit import AttemptGates, AttemptLimiter
from cloud_hub.enrollment.renewal import RenewalService
from cloud_hub.enrollment.replies import BrokerAddress, HubAddress
from cloud_hub.registry.registry import Registry
from cloud_hub.runtime.bootstrap import HubState, ensure_certificates
from cloud_hub.runtime.config import HubConfig
from cloud_hub.security.authority import utc_now
from cloud_hub.security.hub_keys import HubCard
from wire.process.logging import JsonLog
from wire.transport.base import Transport
from wire.transport.mqtt import MqttTransport

SESSION_EXPIRY_S = 86_400  # the broker keeps the hub's queue for a day
UPKEEP_S = 30.0
_MINUTE_S = 60.0
_LOOPBACK_HOSTS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - where we reach what listens on every address


class IdentityService:
    """Everything that issues, renews and ends the identity of a device.

    `issuer`, `renewals` and `rotation` serve the web API, `gates` limit attempts, `doorman` ends
    broker sessions, `card` is the hub's public keys.
    """

    def __init__(
        self,
        config: HubConfig,
        ground: HubState,
        holdings: tuple[Registry, OrderedWork],
        broker_port: int,
        log: JsonLog,
    ) -> None:
        registry, self._work = holdings
        self._config = config
        self._ground = ground
        self._registry = registry
        host = config.broker.host
        self._broker = (_LOOPBACK_HOSTS.get(host, host), broker_port)
        self._log = log
        self._after_change: list[Callable[[], Awaitable[None]]] = []
        self._after_added: list[Callable[[], Awaitable[None]]] = []
        keys, authorities = ground.keys, ground.authorities
        self.card = HubCard(config.hub.name, config.hub.region, keys.hpke_public, keys.signing_public)
        place = HubAddress(BrokerAddress(config.broker_host(), broker_port), (self.card,), anchor=ground.anchor)
        hardware = HardwareList(config.enrol.hardware_file)
        hardware.check_file()
        self.issuer = EnrollmentService(registry, authorities, place, hardware, log)
        self.renewals = RenewalService(registry, authorities, place, log)
        self.rotation = CaRotation(authorities, registry, self._announce_added, self._reload_certificates)
        self.gates = AttemptGates(self._new_limiter(), self._new_limiter(), self._new_limiter())
        self.doorman = SessionEvictor(registry, self._take_over, log)

    def on_ca_change(self, *hooks: Callable[[], Awaitable[None]]) -> None:
        """Register hooks, called in order after the CA changed: broker and web API take up their new certificates."""
        self._after_change += hooks

    def on_ca_added(self, *hooks: Callable[[], Awaitable[None]]) -> None:
        """Register hooks, called in order when a second CA is trusted beside the first, before it issues anything."""
        self._after_added += hooks

    def set_card(self, card: HubCard) -> None:
        """Set the hub's card that devices are given when they enrol or renew."""
        self.card = card
        self.issuer.set_card(card)
        self.renewals.set_card(card)

    def divide_attempts(self, hubs: int) -> None:
        """Allow so many hubs of the region together what one alone allows."""
        for gate in self.gates:
            gate.divide_rates(hubs, time.monotonic())

    def _new_limiter(self) -> AttemptLimiter:
        """Return a new rate limiter with the configured rates."""
        tries = self._config.enrol
        return AttemptLimiter(tries.per_s, tries.burst, tries.failures_per_minute / _MINUTE_S, tries.failures)

    def active_devices(self) -> tuple[str, ...]:
        """Return the ids of active devices."""
        return tuple(device.id for device in self._registry.devices() if device.active)

    async def connect(self) -> Transport:
        """Connect to the broker as the hub; the certificate files are read anew, since a rotation changes them."""
        context = ssl.create_default_context(cafile=self._ground.ca_file)
        context.load_cert_chain(self._ground.client.certificate, self._ground.client.key)
        dial = functools.partial(MqttTransport.connect, *self._broker, self._config.hub.member, context)
        # Of a hub that serves by lease nothing is queued while it is away: another one serves its shards.
        return await dial(session_expiry_s=0 if self._config.store.url else SESSION_EXPIRY_S)

    async def end_retirements(self, now_ms: Callable[[], int], is_mine: Callable[[], bool]) -> None:
        """End retirements whose time is over, until cancelled; `is_mine`: whether no other hub of the region does."""
        while True:
            over = await self._work.run(self._registry.end_retirements, now_ms()) if is_mine() else ()
            for device in over:
                self.doorman.queue_eviction(device)
            await asyncio.sleep(UPKEEP_S)

    def named_tasks(self, now_ms: Callable[[], int], is_mine: Callable[[], bool]) -> dict[str, Any]:
        """Return coroutines by name, for the process's task group."""
        return {"doorman": self.doorman.run(), "retirements": self.end_retirements(now_ms, is_mine)}

    async def _take_over(self, device: str) -> Transport:
        context = build_stand_in_context(self._ground.authorities, self._ground.state.certificates, device)
        return await MqttTransport.connect(*self._broker, device, context)

    async def reload_authorities(self) -> None:
        """Take up the CAs as they are in the state folder now."""
        self._ground.authorities.reload(utc_now())
        await self._reload_certificates()

    async def _announce_added(self) -> None:
        for each in self._after_added:
            await each()

    async def _reload_certificates(self) -> None:
        ensure_certificates(self._ground.authorities, self._config)
        self._log.info("ca_changed")
        for each in self._after_change:
            await each()

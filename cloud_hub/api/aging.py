"""Metrics of what ages or fails quietly: certificates, roles of the update repository, silent devices, engines.

Rule: nothing here is a device's or a caller's word: labels are fixed, or the models that the hub knows.
"""

import time
from collections import Counter as Counted
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cloud_hub.api.interface import ApiContext
from cloud_hub.registry.device_states import DeviceState
from cloud_hub.registry.health import ENDING_MS, SILENT_MS
from models.signing.roles import TOP_LEVEL

READ_EVERY_S = 60.0  # how often files are read for a scrape
OTHER_ROLES = "delegated"


class AgingCollector(Collector):
    """Prometheus collector of ends that come closer, and of what is down. `tls_cert`: of the web API, "" for none."""

    def __init__(self, context: ApiContext, tls_cert: str) -> None:
        self._context = context
        self._tls_cert = tls_cert
        self._read_s = -READ_EVERY_S
        self._ends: dict[str, datetime] = {}
        self._roles: dict[str, datetime] = {}

    def collect(self) -> Iterator[Metric]:
        """Yield days left of certificates and roles, devices by certificate, silent devices, failures of engines."""
        now_ms = self._context.now_ms()
        self._read_files()
        text = "Seconds until a certificate of the hub ends."
        yield _time_left("certificate", text, self._ends, now_ms)
        text = "Seconds until a role of the update repository expires; the earliest of all that are delegated."
        yield _time_left("role", text, self._roles, now_ms)
        yield from self._device_metrics(now_ms)
        yield from self._engine_metrics()

    def _read_files(self) -> None:
        """Read the ends anew, at most once a minute."""
        if time.monotonic() - self._read_s < READ_EVERY_S:
            return
        self._read_s = time.monotonic()
        self._ends = {**self._context.rotation.expiry(), **_read_certificate(self._tls_cert)}
        self._roles = group_roles(self._context.role_expiry())

    def _device_metrics(self, now_ms: int) -> Iterator[Metric]:
        active = [each for each in self._context.registry.devices() if each.state is DeviceState.ACTIVE]
        states = Counted(_certificate_state(each.certificate_ends_ms, now_ms) for each in active)
        text = "Active devices by their certificate: valid, ending within a day, expired."
        family = GaugeMetricFamily("skerry_hub_device_certificates", text, labels=["state"])
        for state in ("valid", "ending", "expired"):
            family.add_metric([state], states[state])
        yield family
        heard, served = self._context.hub.last_heard(), self._context.hub.served
        # what a process before this one heard is not known: the time counts from its start
        began_ms = now_ms - int(float(self._context.hub.status().get("uptime_s", 0.0)) * 1000)
        silent = sum(
            max(
                heard.get(each.id, 0.0) * 1000,
                each.enrolled_ms,
                began_ms,
                served.find_beginning(each.id) * 1000,
            )
            < now_ms - SILENT_MS
            for each in active
        )
        text = "Active devices served here of which nothing was heard for a day, since this process began."
        yield GaugeMetricFamily("skerry_hub_devices_silent", text, value=silent)

    def _engine_metrics(self) -> Iterator[Metric]:
        failed = set(self._context.hub.status().get("engines_down", ()))
        down = GaugeMetricFamily("skerry_hub_engine_down", "1 while an engine fails its self test.", labels=["model"])
        for model in sorted({card.name for card in self._context.inference.cards} | failed):
            down.add_metric([model], float(model in failed))
        yield down
        text = "Groups of ranks that were lost and started again."
        rebuilt = CounterMetricFamily("skerry_hub_gang_rebuilds", text, labels=["model"])
        for model, count in sorted(self._context.engines.rebuilds().items()):
            rebuilt.add_metric([model], count)
        yield rebuilt
        yield from self._setup_metrics()

    def _setup_metrics(self) -> Iterator[Metric]:
        """Yield what each loaded model runs on: its weights, and whether that is a fallback."""
        labels = ["model", "device", "precision"]
        text = "Bytes of a loaded model's weights, by what it runs on."
        weights = GaugeMetricFamily("skerry_hub_engine_weight_bytes", text, labels=labels)
        text = "1 while a model runs otherwise than the configuration asks."
        fallback = GaugeMetricFamily("skerry_hub_engine_fallback", text, labels=["model"])
        for model, setup in sorted(self._context.engines.setups().items()):
            weights.add_metric([model, setup.device, setup.precision], setup.weight_bytes)
            fallback.add_metric([model], float(bool(setup.fallback)))
        yield weights
        yield fallback


def group_roles(ends: Mapping[str, datetime]) -> dict[str, datetime]:
    """Return the ends of the top-level roles, and the earliest of all others as `delegated`."""
    found = {role: end for role, end in ends.items() if role in TOP_LEVEL}
    others = [end for role, end in ends.items() if role not in TOP_LEVEL]
    return {**found, OTHER_ROLES: min(others)} if others else found


def _time_left(kind: str, text: str, ends: Mapping[str, datetime], now_ms: int) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"skerry_hub_{kind}_left_seconds", text, labels=[kind])
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    for name, end in sorted(ends.items()):
        family.add_metric([name], (end - now).total_seconds())
    return family


def _read_certificate(path: str) -> dict[str, datetime]:
    """Return the end of the web API's certificate; {} without one, or while its file is being replaced."""
    try:
        found = x509.load_pem_x509_certificate(Path(path).read_bytes()) if path else None
    except (OSError, ValueError):
        return {}
    return {"api": found.not_valid_after_utc} if found else {}


def _certificate_state(ends_ms: int, now_ms: int) -> str:
    return "expired" if ends_ms <= now_ms else "ending" if ends_ms <= now_ms + ENDING_MS else "valid"

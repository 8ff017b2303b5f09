"""Energy of answers and questions: how many joules a second of inference takes, and what every rule has spent.

Where the machine tells (`energy_meters`), the watts of one more busy core are the slope of the line through the windows
that were seen, busy cores against watts: what an answer adds, and not the machine's idle power, which it would take
anyway. Until the windows differ enough to tell, and where nothing tells, the configured figure counts, and the status
says so. Rule: nothing is measured for one sample; an answer costs one multiplication and one addition.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import msgspec

from edge_agent.question.limits import LinkEnergy
from edge_agent.system.energy_meters import BatteryMeter, CardMeter, EnergyMeter, MeterError, RaplMeter, read_busy_s

_FORGET = 0.5 ** (1 / 120)  # per window: of 5 s each, half of the weight is of the last ten minutes
_MIN_WINDOWS = 12.0
_MIN_SPREAD_CORES = 0.02  # standard deviation of the busy cores, below which the line has no slope to be trusted
_WATTS = (0.05, 500.0)  # what a core, or a card at work, can plausibly take
_MAX_RULES = 64  # of one status; policies have fewer
_OTHERS = ("others",)


class MeterKind(StrEnum):
    """Meters that the configuration may name, in the order in which they are tried."""

    RAPL = "rapl"
    BATTERY = "battery"
    CARD = "card"


class LinkKind(StrEnum):
    """Radio of the device, each with stated figures for a message; `unknown` counts as the dearest."""

    WIRED = "wired"
    WIFI = "wifi"
    LTE = "lte"
    UNKNOWN = "unknown"


# Huang et al., "A close examination of performance and power characteristics of 4G LTE networks", MobiSys 2012, tables
# 3 and 4: promotion and tail of a transfer that comes alone, power a Mbit/s upwards. A wire's share is nobody's radio.
_LTE = LinkEnergy(12.6, 3.5)
STATED_LINKS = {
    LinkKind.WIRED: LinkEnergy(),
    LinkKind.WIFI: LinkEnergy(0.04, 2.3),
    LinkKind.LTE: _LTE,
    LinkKind.UNKNOWN: _LTE,
}


class EnergySettings(msgspec.Struct, frozen=True):
    """What is configured of the device's energy.

    `watts`: of one core at work, where no meter tells. `cores`: that inference uses. `link`: figures of one message;
    `link_kind`: whose they are, "configured" if they were given as numbers.
    """

    meters: tuple[MeterKind, ...] = (MeterKind.RAPL, MeterKind.BATTERY)
    watts: float = 4.0
    cores: int = 1
    link: LinkEnergy = _LTE
    link_kind: str = LinkKind.UNKNOWN


class PowerLine:
    """The line through windows of (use, watts) by least squares; older windows count less and less."""

    def __init__(self) -> None:
        self._n = self._x = self._y = self._xx = self._xy = 0.0

    def add_window(self, use: float, watts: float) -> None:
        """Take in one window: its mean use (busy cores, or cards' seconds a second) and its mean power."""
        self._n, self._x, self._y = self._n * _FORGET + 1, self._x * _FORGET + use, self._y * _FORGET + watts
        self._xx, self._xy = self._xx * _FORGET + use * use, self._xy * _FORGET + use * watts

    @property
    def windows(self) -> float:
        """Weight of the windows that count."""
        return self._n

    def find_slope(self) -> float | None:
        """Watts of one more unit of use; None while the windows are too few, too equal, or make no sense."""
        if self._n < _MIN_WINDOWS:
            return None
        spread = self._xx / self._n - (self._x / self._n) ** 2
        if spread < _MIN_SPREAD_CORES**2:
            return None
        slope = (self._xy / self._n - self._x * self._y / self._n**2) / spread
        return slope if _WATTS[0] <= slope <= _WATTS[1] else None


class _MeterSeries:
    """One meter, its last read and its line."""

    def __init__(self, meter: EnergyMeter) -> None:
        self.meter = meter
        self.line = PowerLine()
        self.trouble = ""
        self._last: tuple[float, float] | None = None  # joules, use

    def read_window(self, now: float, elapsed_s: float, use_s: float) -> None:
        """Read the meter, and take in the window since the last good read; `use_s`: a sum, as of now."""
        try:
            joules = self.meter.read_joules(now)
        except MeterError as error:
            self.trouble, self._last = str(error), None
            return
        if self._last is not None and elapsed_s > 0:
            before, used = self._last
            self.line.add_window((use_s - used) / elapsed_s, (joules - before) / elapsed_s)
        self.trouble, self._last = "", (joules, use_s)


class EnergyMonitor:
    """Energy of one device; used on the event loop only. `watts`: joules of one second of inference, as of now."""

    def __init__(self, settings: EnergySettings, meters: Sequence[EnergyMeter] | None = None) -> None:
        """`meters`: others than the machine's own that the settings name."""
        self.watts = settings.watts * settings.cores
        self._settings = settings
        chosen = [_METERS[kind]() for kind in settings.meters] if meters is None else meters
        self._cards = [_MeterSeries(each) for each in chosen if each.name == MeterKind.CARD]
        self._boards = [_MeterSeries(each) for each in chosen if each.name != MeterKind.CARD]
        self._source = "model"
        self._at: float | None = None
        self._infer_s = 0.0
        self._infer_j = 0.0
        self._questions_mj = 0
        self._by_rule: dict[tuple[str, ...], float] = {}

    def count_answer(self, rules: tuple[str, ...], infer_s: float, question_mj: int) -> None:
        """Count an answer under these rules; `question_mj`: of the question that was stored for it, else 0."""
        joules = self.watts * infer_s
        self._infer_s += infer_s
        self._infer_j += joules
        self._questions_mj += question_mj
        held = self._by_rule
        at = rules if rules in held or len(held) < _MAX_RULES else _OTHERS
        held[at] = held.get(at, 0.0) + joules + question_mj / 1e3

    def sample_meters(self, now: float) -> None:
        """Read the meters; call it every few seconds. `now`: seconds on a clock that never goes back."""
        elapsed_s = 0.0 if self._at is None else now - self._at
        self._at = now
        if self._boards:
            try:
                busy_s = read_busy_s()
            except MeterError as error:
                for each in self._boards:
                    each.trouble = str(error)
            else:
                for each in self._boards:
                    each.read_window(now, elapsed_s, busy_s)
        for each in self._cards:
            each.read_window(now, elapsed_s, self._infer_s)
        self._choose_watts()

    def _choose_watts(self) -> None:
        """The first meter that has a slope; else the configured figure. A card's comes on top of either."""
        told = [(each.meter.name, slope) for each in self._boards if (slope := each.line.find_slope()) is not None]
        name, watts = told[0] if told else ("model", self._settings.watts)
        cards = [slope for each in self._cards if (slope := each.line.find_slope()) is not None]
        self._source = "+".join((name, *([MeterKind.CARD.value] if cards else [])))
        self.watts = watts * self._settings.cores + sum(cards)

    def status_fields(self) -> dict[str, Any]:
        """JSON-able: where the figures are from, joules by kind and by rule."""
        series = (*self._boards, *self._cards)
        link = self._settings.link
        return {
            "energy": {
                "source": self._source,
                "watts": round(self.watts, 3),
                "meters": {each.meter.name: each.trouble or _describe_line(each.line) for each in series},
                "link": {
                    "kind": self._settings.link_kind, "message_j": link.message_j, "byte_uj": link.byte_uj,
                },
                "inference_j": round(self._infer_j, 6),
                "questions_j": self._questions_mj / 1e3,
                "by_rule": {"+".join(rules) or "base": round(held, 6) for rules, held in self._by_rule.items()},
            }
        }  # fmt: skip


def _describe_line(line: PowerLine) -> str:
    slope = line.find_slope()
    told = f"{slope:.2f} W of use" if slope is not None else "too few or too equal windows to tell"
    return f"{told}, {line.windows:.0f} windows"


_METERS: dict[MeterKind, type[RaplMeter] | type[BatteryMeter] | type[CardMeter]] = {
    MeterKind.RAPL: RaplMeter,
    MeterKind.BATTERY: BatteryMeter,
    MeterKind.CARD: CardMeter,
}

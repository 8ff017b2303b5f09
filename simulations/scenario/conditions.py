"""Network and disk conditions of a run, drawn from one seeded generator: latency, loss, repeats, failures, clock skew.

Rule: it knows no device and no core. It is asked once per message, always in the order of virtual time, so that the
same seed gives the same conditions. What was drawn before for a question (`QuestionFate`) happens to it instead.
"""

from collections.abc import Hashable, Iterable
from random import Random

import msgspec


class EnvironmentConditions(msgspec.Struct, frozen=True):
    """Rates and delays of network, disks and clocks that hold for a while.

    `latency_s`: mean one way; half of it is certain, the rest exponential. `loss`: share of messages that never
    arrive. `repeats`: share that arrives twice (QoS 1 may). `skew_s`, `drift`: a device's clock runs up to so many
    seconds off and up to this share too fast or too slow. `notice_s`: a dead link is noticed at most so much later
    (keep-alive). `wall_error_s`: at start a device is wrong about hub time by up to so much. `bad_disk`: share of
    writes that fail; `bad_batch`: of the hub's batches.
    """

    latency_s: float = 0.05
    loss: float = 0.01
    repeats: float = 0.01
    skew_s: float = 100.0
    drift: float = 100e-6
    notice_s: float = 15.0
    wall_error_s: float = 400.0
    bad_disk: float = 0.001
    bad_batch: float = 0.001


IDEAL_CONDITIONS = EnvironmentConditions(
    latency_s=0.01, loss=0.0, repeats=0.0, skew_s=0.0, drift=0.0, notice_s=0.0, wall_error_s=0.0, bad_disk=0.0
)


class DeviceClock(msgspec.Struct, frozen=True, gc=False):
    """A device's own monotonic clock: seconds from an arbitrary start, at a rate a little off."""

    skew_s: float = 0.0
    rate: float = 1.0

    def read(self, true_s: float) -> float:
        """What this clock shows at true time `true_s` (s)."""
        return self.skew_s + self.rate * true_s

    def true_time_at(self, own_s: float) -> float:
        """The true time at which this clock will show `own_s`."""
        return (own_s - self.skew_s) / self.rate


class QuestionFate(msgspec.Struct, gc=False):
    """Conditions of one question that were drawn before it was asked; None = to be drawn, or used up.

    `disk_fails`: on the device. `up_s`, `down_s`: after how many seconds its frame and its verdict arrive: none if the
    message is lost, two if it is repeated. `store_fails`, `ending_fails`: writes of the hub; `batch_fails`: its batch.
    """

    disk_fails: bool | None = None
    up_s: tuple[float, ...] | None = None
    store_fails: bool | None = None
    batch_fails: bool | None = None
    ending_fails: bool | None = None
    down_s: tuple[float, ...] | None = None


class ConditionSampler:
    """Sampler of the conditions in force: the usual ones of a region, or those of the newest event.

    All draws come from `rng`, in the order of calls. `fates`: by question, what was drawn for it before.
    """

    def __init__(self, climate: EnvironmentConditions, rng: Random) -> None:
        self.fates: dict[Hashable, QuestionFate] = {}
        self._climate = self._usual = climate
        self._spells: list[EnvironmentConditions] = []
        self._rng = rng

    def stop_faults(self) -> None:
        """From now on the usual conditions lose, repeat and fail nothing; latency and clocks stay."""
        self._usual = msgspec.structs.replace(self._usual, loss=0.0, repeats=0.0, bad_disk=0.0, bad_batch=0.0)
        self._climate = self._spells[-1] if self._spells else self._usual

    def push_conditions(self, spell: EnvironmentConditions) -> None:
        """Let other conditions hold for a while; the newest ones count."""
        self._spells.append(spell)
        self._climate = spell

    def pop_conditions(self, spell: EnvironmentConditions) -> None:
        """End the conditions that `push_conditions` was given; those before them hold again."""
        self._spells.remove(spell)
        self._climate = self._spells[-1] if self._spells else self._usual

    def draw_delays(self) -> tuple[float, ...]:
        """Delays in seconds after which one message arrives: usually one, none if it is lost, two if it is repeated."""
        climate, luck = self._climate, self._rng.random()
        if luck < climate.loss:
            return ()
        if luck < climate.loss + climate.repeats:
            return self._draw_delay_s(), self._draw_delay_s()
        return (self._draw_delay_s(),)

    def draw_notice_s(self) -> float:
        """Draw how many seconds it takes until a device notices that its link is dead."""
        return self._rng.uniform(0.0, self._climate.notice_s)

    def draw_wall_error_s(self) -> float:
        """Draw by how many seconds a device that just started is wrong about hub time."""
        return self._rng.uniform(-1.0, 1.0) * self._climate.wall_error_s

    def disk_fails(self) -> bool:
        """Draw whether one write to a disk fails."""
        return self._rng.random() < self._climate.bad_disk

    def batch_fails(self) -> bool:
        """Draw whether one batch of the hub's engine fails."""
        return self._rng.random() < self._climate.bad_batch

    # Of one question, the first time as was drawn for it before

    def store_fails(self, key: Hashable) -> bool:
        """Whether the hub's write of a question fails."""
        fate = self.fates.get(key) if self.fates else None
        if fate is None or fate.store_fails is None:
            return self.disk_fails()
        fails, fate.store_fails = fate.store_fails, None
        return fails

    def ending_fails(self, key: Hashable) -> bool:
        """Whether the hub's write of a question's ending fails."""
        fate = self.fates.get(key) if self.fates else None
        if fate is None or fate.ending_fails is None:
            return self.disk_fails()
        fails, fate.ending_fails = fate.ending_fails, None
        return fails

    def batch_with_fails(self, keys: Iterable[Hashable]) -> bool:
        """Whether a batch of these questions fails."""
        fates = [fate for key in keys if (fate := self.fates.get(key))] if self.fates else []
        drawn = [fate.batch_fails for fate in fates if fate.batch_fails is not None]
        for fate in fates:
            fate.batch_fails = None
        return any(drawn) if drawn else self.batch_fails()

    def draw_up(self, key: Hashable) -> tuple[float, ...]:
        """Delays of a question's frame to the hub, as `draw_delays`."""
        fate = self.fates.get(key) if self.fates else None
        if fate is None or fate.up_s is None:
            return self.draw_delays()
        delays, fate.up_s = fate.up_s, None
        return delays

    def draw_down(self, key: Hashable) -> tuple[float, ...]:
        """Delays of a question's verdict to its device, as `draw_delays`."""
        fate = self.fates.get(key) if self.fates else None
        if fate is None or fate.down_s is None:
            return self.draw_delays()
        delays, fate.down_s = fate.down_s, None
        return delays

    def _draw_delay_s(self) -> float:
        half = self._climate.latency_s / 2
        return half + self._rng.expovariate(1.0) * half

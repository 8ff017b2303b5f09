"""The round that is being gathered: which questions wait in it, who asked lately, and when it ends. Pure."""

from collections.abc import Callable

from policies.serving.rounds import GatheredRound, RoundLimits, RoundLoad, find_round_end


class QuestionRound:
    """Questions that were accepted since the last flush; all times are hub seconds.

    `count_open`: how many questions have no ending yet, wherever they are.
    """

    def __init__(self, limits: RoundLimits, count_open: Callable[[], int]) -> None:
        self._limits = limits
        self._count_open = count_open
        self._gathered = GatheredRound(0.0)
        self._askers: set[str] = set()  # since `_began_s`
        self._earlier = 0  # how many asked in the `max_wait_s` before that
        self._began_s = 0.0

    @property
    def max_wait_s(self) -> float:
        """The longest that any round may gather."""
        return self._limits.max_wait_s

    def add(self, device: str, deadline: float, now: float) -> None:
        """A question of this device was accepted and waits for its round to end."""
        if not self._gathered.questions:
            self._gathered = GatheredRound(now)
        self._gathered = self._gathered.add(deadline)
        self._turn(now)
        self._askers.add(device)

    def find_end(self, busy: float) -> float:
        """When the round ends; what is past ends at once. `busy`: share of its time that the event loop works."""
        load = RoundLoad(self._count_open(), max(len(self._askers), self._earlier), busy)
        return find_round_end(self._gathered, load, self._limits)

    def close(self) -> None:
        """The round has ended: what comes now is of the next one."""
        self._gathered = GatheredRound(0.0)

    def _turn(self, now: float) -> None:
        """Begin a new count of askers every `max_wait_s`; the one before says how many to expect."""
        passed = now - self._began_s
        if not 0.0 <= passed < self._limits.max_wait_s:
            recent = 0.0 <= passed < 2 * self._limits.max_wait_s
            self._earlier, self._askers = len(self._askers) if recent else 0, set()
            self._began_s = now

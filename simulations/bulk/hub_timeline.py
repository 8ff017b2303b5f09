"""Timeline of one hub for many questions: lookups, commits, rounds and batches, each question as a few numbers.

Rule: the order of things is that of `simulations.nodes.hub_process` with the production core (a lookup where a stream
is not remembered, what comes in one commit, inference beside the commit, a batch at the end of each round or commit),
and the sizes of batches are those of `policies.serving.batching`. Only questions without any failure are followed
here.
"""

from collections import OrderedDict
from collections.abc import Sequence
from heapq import heappop, heappush
from math import inf

import msgspec
import numpy as np
import numpy.typing as npt

from cloud_hub.core.context import STREAMS
from policies.serving.batching import choose_batch_size
from simulations.nodes.services import RegionServices
from simulations.scenario.types import Region

_FOUND, _STORED, _ENDED = range(3)


class HubPace(msgspec.Struct, frozen=True):
    """How fast a hub is: seconds of a commit, of a round and of a batch, and how many batches of what size at once."""

    commit_s: float
    round_s: float
    cost_base_s: float
    cost_item_s: float
    slots: int
    max_batch: int


def build_pace(ground: RegionServices, region: Region) -> HubPace:
    """Pace of a region's hub."""
    pace = ground.pace
    return HubPace(pace.commit_s, pace.round_s, region.cost_base_s, region.cost_item_s, region.slots, region.max_batch)


class HubTimes(msgspec.Struct):
    """Times of each question in virtual seconds; `receipted_s` inf = its verdict came first.

    `admitted_s`: after the lookup, if there was one; `stored_s`, `computed_s`, `sent_s`: the question, its verdict.
    `batch`: number of its batch; `peak`: most that waited at once; `busy_s`: of all engines together.
    """

    admitted_s: npt.NDArray[np.float64]
    stored_s: npt.NDArray[np.float64]
    computed_s: npt.NDArray[np.float64]
    sent_s: npt.NDArray[np.float64]
    receipted_s: npt.NDArray[np.float64]
    batch: npt.NDArray[np.int64]
    peak: int
    busy_s: float


class KnownStreams:
    """Streams (by place of their device) that the hub remembers the highest seq of: the most lately used ones."""

    def __init__(self) -> None:
        self._places: OrderedDict[int, None] = OrderedDict()

    def __contains__(self, place: int) -> bool:
        return place in self._places

    def touch(self, place: int) -> bool:
        """Use a stream; False if it is not known."""
        if place not in self._places:
            return False
        self._places.move_to_end(place)
        return True

    def add(self, place: int) -> None:
        """Learn a stream; the least lately used one is forgotten for it."""
        self._places[place] = None
        self._places.move_to_end(place)
        if len(self._places) > STREAMS:
            self._places.popitem(last=False)

    def clear(self) -> None:
        """Forget all: the process has ended."""
        self._places.clear()


class HubTimeline:
    """Follows questions through one hub; it is empty when `follow` is called, and when it returns."""

    def __init__(self, pace: HubPace, known: KnownStreams) -> None:
        self._pace = pace
        self._known = known
        self._free_s = [0.0] * pace.slots
        self._tickets = 0

    def follow(self, arrivals_s: Sequence[float], places: Sequence[int]) -> HubTimes:
        """Times of questions that arrive at these sorted times from these devices."""
        count = len(arrivals_s)
        self._places = places
        self._admitted, self._stored, self._receipted = [inf] * count, [inf] * count, [inf] * count
        self._computed, self._sent = [inf] * count, [inf] * count
        self._batch_of, self._peak, self._busy_s = [0] * count, 0, 0.0
        self._group: list[tuple[int, int]] = []  # what is in the next commit
        self._flush_s = self._round_s = inf
        self._waiting: list[int] = []
        self._running: list[tuple[float, int, list[int]]] = []
        for question, at_s in enumerate(arrivals_s):
            self._run_until(at_s)
            self._arrive(question, at_s)
        self._run_until(inf)
        return HubTimes(
            np.array(self._admitted), np.array(self._stored), np.array(self._computed), np.array(self._sent),
            np.array(self._receipted), np.array(self._batch_of, np.int64), self._peak, self._busy_s,
        )  # fmt: skip

    def _run_until(self, until_s: float) -> None:
        while True:
            done_s = self._running[0][0] if self._running else inf
            if self._flush_s <= done_s and self._flush_s <= self._round_s:
                if self._flush_s > until_s or self._flush_s == inf:
                    return
                self._commit(self._flush_s)
            elif done_s <= self._round_s:
                if done_s > until_s:
                    return
                self._finish_batch(done_s)
            else:
                if self._round_s > until_s:
                    return
                now_s, self._round_s = self._round_s, inf
                self._form_batches(now_s)

    def _arrive(self, question: int, now_s: float) -> None:
        if self._known.touch(self._places[question]):
            self._admit(question, now_s)
        else:
            self._submit(_FOUND, question, now_s)
        if self._round_s == inf:
            self._round_s = now_s + self._pace.round_s

    def _admit(self, question: int, now_s: float) -> None:
        self._admitted[question] = now_s
        self._submit(_STORED, question, now_s)
        self._waiting.append(question)

    def _submit(self, what: int, question: int, now_s: float) -> None:
        if not self._group:
            self._flush_s = now_s + self._pace.commit_s
        self._group.append((what, question))

    def _commit(self, now_s: float) -> None:
        group, self._group, self._flush_s = self._group, [], inf
        due = False
        for what, question in group:
            if what == _ENDED:
                self._sent[question] = now_s
                continue
            due = True
            if what == _STORED:
                self._stored[question] = now_s
                if self._computed[question] == inf:
                    self._receipted[question] = now_s
            else:
                self._known.add(self._places[question])
                self._admit(question, now_s)
        if due:
            self._form_batches(now_s)

    def _form_batches(self, now_s: float) -> None:
        self._peak = max(self._peak, len(self._waiting))
        while self._waiting and self._idle:
            self._start_batch(now_s)

    @property
    def _idle(self) -> bool:
        """Whether a batch may be sent now, as `ModelQueue.idle` says of a model whose engine works."""
        running, slots = len(self._running), self._pace.slots
        return running < slots or (running < 2 * slots and len(self._waiting) >= self._pace.max_batch)

    def _start_batch(self, now_s: float) -> None:
        pace, waiting = self._pace, self._waiting
        size = choose_batch_size(len(waiting), pace.max_batch, max(1, pace.slots - len(self._running)))
        items, self._waiting = waiting[:size], waiting[size:]
        free = min(range(pace.slots), key=self._free_s.__getitem__) if pace.slots > 1 else 0
        cost_s = pace.cost_base_s + pace.cost_item_s * size
        self._free_s[free] = done_s = max(now_s, self._free_s[free]) + cost_s
        self._busy_s += cost_s
        self._tickets += 1
        heappush(self._running, (done_s, self._tickets, items))

    def _finish_batch(self, now_s: float) -> None:
        _, ticket, items = heappop(self._running)
        while self._waiting and self._idle:
            self._start_batch(now_s)
        for question in items:
            self._computed[question] = now_s
            self._batch_of[question] = ticket
            self._submit(_ENDED, question, now_s)

"""Hubs that hear of each other's changes: whatever was committed is taken in or the hub is closed, in any order."""

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cloud_hub.database.changes import Topic
from cloud_hub.region.news import EVERYTHING, NEWS_LIFE_S, NewsState, StaleTopic, find_closing_time

revisions = st.dictionaries(st.sampled_from(Topic), st.integers(0, 5))
seconds = st.floats(0, 10, allow_nan=False)


@given(revisions, revisions)
def test_what_is_read_again_is_what_differs_and_all_of_it_where_a_database_went_back(seen, found):
    stale = NewsState(seen).find_stale(found)
    differing = {topic for topic in Topic if seen.get(topic, 0) != found.get(topic, 0)}
    assert {each.topic for each in stale} == differing
    for each in stale:
        assert each.revision == found.get(each.topic, 0)
        assert each.after == (seen.get(each.topic, 0) if each.revision > seen.get(each.topic, 0) else EVERYTHING)


@given(revisions, revisions)
def test_what_was_taken_in_is_not_read_again(seen, found):
    state = NewsState(seen)
    assert state.take_in(state.find_stale(found)).find_stale(found) == ()


@given(revisions, revisions)
def test_after_a_failure_everything_is_read_again(seen, found):
    stale = NewsState(seen).forget().find_stale(found)
    assert stale == tuple(StaleTopic(topic, EVERYTHING, found.get(topic, 0)) for topic in Topic)


class TwoHubs(RuleBasedStateMachine):
    """One hub changes things; the other looks when it can, by the clock that both share."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1000.0
        self.committed: dict[Topic, list[float]] = {topic: [] for topic in Topic}
        self.state = NewsState({})
        self.open_until_s = find_closing_time(self.now_s, 0.0)

    @rule(topic=st.sampled_from(Topic))
    def change(self, topic: Topic) -> None:
        self.committed[topic].append(self.now_s)

    @rule(passed_s=seconds)
    def wait(self, passed_s: float) -> None:
        self.now_s += passed_s

    @rule(late_s=st.floats(0, 8, allow_nan=False))
    def look(self, late_s: float) -> None:
        """A look whose answer is taken in later: a slow server, or a busy event loop."""
        found, began_s = {topic: len(times) for topic, times in self.committed.items()}, self.now_s
        self.state = self.state.take_in(self.state.find_stale(found))
        self.now_s += late_s
        self.open_until_s = find_closing_time(self.now_s, self.now_s - began_s)

    @invariant()
    def an_open_hub_knows_whatever_is_older_than_the_limit(self) -> None:
        if self.now_s > self.open_until_s:
            return
        for topic, times in self.committed.items():
            unheard = times[self.state.seen.get(topic, 0) :]
            assert [at for at in unheard if self.now_s - at > NEWS_LIFE_S + 1e-6] == []


TestTwoHubs = TwoHubs.TestCase

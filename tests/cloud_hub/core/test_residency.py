"""Models that take turns in limited memory: the least recently used makes room, loads wait, and no question is lost."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_hub.core.commands import BatchItem, Command, LoadModel, QuestionKey, RunBatch, UnloadModel
from cloud_hub.core.queues import ModelState
from cloud_hub.core.residency import ModelResidency
from cloud_hub.core.scheduler import Batcher
from cloud_hub.engine.types import WorkItem
from cloud_hub.system.settings import HubSettings
from tests.cloud_hub.doubles.devices import CARD

NAMES = ("a", "b", "c", "d")


class Turns:
    """A batcher and its residency; loads, unloads and batches end when the test says so. Counts what is in memory."""

    def __init__(self, limit: int, sizes: dict[str, int]) -> None:
        cards = [
            msgspec.structs.replace(CARD, ref=msgspec.structs.replace(CARD.ref, name=name), weight_bytes=size)
            for name, size in sizes.items()
        ]
        self.names = {card.ref.name: card.name for card in cards}
        self.sizes = {card.name: card.weight_bytes for card in cards}
        self.limit = limit
        self.batcher = Batcher([], 4)
        for card in cards:
            self.batcher.add_model(card)
        self.residency = ModelResidency(HubSettings(max_loaded_bytes=limit), self.batcher)
        self.now = 0.0
        self.seq = 0
        self.held: set[str] = set()
        self.loading: list[str] = []
        self.running: list[RunBatch] = []
        self.answered: list[int] = []

    def ask(self, name: str) -> None:
        self.seq += 1
        self.now += 1.0
        self.batcher.add_item(self.names[name], BatchItem(QuestionKey("dev", 1, self.seq), WorkItem(), self.now))

    def obey(self, commands: list[Command]) -> None:
        for command in commands:
            if isinstance(command, LoadModel):
                self.held.add(command.model)
                self.loading.append(command.model)
            elif isinstance(command, UnloadModel):
                self.held.remove(command.model)
            elif isinstance(command, RunBatch):
                assert command.model in self.held
                self.running.append(command)
        assert sum(self.sizes[model] for model in self.held) <= self.limit, "more in memory than is allowed"

    def step(self) -> None:
        """One round: batches and loads under way end, then the core says what is next."""
        loading, self.loading = self.loading, []
        for model in loading:
            self.batcher.on_loaded(model, "", self.now)
        running, self.running = self.running, []
        for batch in running:
            self.batcher.finish_batch(batch.ticket, 0.01)
            self.answered += [item.key.seq for item in batch.items]
        self.obey(self.residency.make_room(self.batcher.next_commands(self.now), self.now))

    def state(self, name: str) -> ModelState:
        return self.batcher.model_state(self.names[name])


@settings(max_examples=60)
@given(
    st.lists(st.sampled_from(NAMES) | st.none(), max_size=40),
    st.dictionaries(st.sampled_from(NAMES), st.integers(1, 10), min_size=4, max_size=4),
    st.integers(10, 25),
)
def test_no_question_is_lost_and_memory_is_never_exceeded_whoever_asks(asked, sizes, limit):
    turns = Turns(limit, sizes)
    for name in asked:
        turns.step() if name is None else turns.ask(name)
    for _ in range(20 + 8 * len(asked)):
        turns.step()
    assert sorted(turns.answered) == list(range(1, turns.seq + 1))


def test_two_models_that_are_always_asked_take_turns_where_only_one_fits():
    turns = Turns(10, {"a": 10, "b": 10, "c": 1, "d": 1})
    for _ in range(60):
        turns.ask("a")
        turns.ask("b")
        turns.step()
    late = [seq for seq in turns.answered if seq > 40]
    assert {seq % 2 for seq in late} == {0, 1}, "one of them starved"
    assert len(turns.answered) > 60


def test_the_one_asked_for_least_lately_goes_and_no_more_than_have_to():
    turns = Turns(10, {"a": 4, "b": 4, "c": 2, "d": 4})
    for name in ("a", "b", "c", "a"):
        turns.ask(name)
        for _ in range(4):
            turns.step()
    turns.ask("d")
    for _ in range(4):
        turns.step()
    assert {name for name in NAMES if turns.state(name) is ModelState.READY} == {"a", "c", "d"}
    assert turns.residency.displaced == {turns.names["b"]}


def test_a_load_waits_until_the_one_that_makes_room_has_answered_what_it_had():
    turns = Turns(10, {"a": 10, "b": 10, "c": 1, "d": 1})
    turns.ask("a")
    turns.step()
    turns.step()
    assert len(turns.running) == 1  # of a
    turns.ask("b")
    turns.obey(turns.residency.make_room(turns.batcher.next_commands(turns.now), turns.now))
    assert (turns.state("a"), turns.state("b")) == (ModelState.CLOSING, ModelState.LOADING)
    assert turns.held == {turns.names["a"]}
    turns.step()
    assert turns.held == {turns.names["b"]}
    assert turns.answered == [1]


def test_what_is_not_loaded_at_the_start_for_lack_of_room_is_displaced_and_what_never_fits_is_not():
    turns = Turns(10, {"a": 6, "b": 4, "c": 5, "d": 11})
    turns.ask("a")
    for _ in range(3):
        turns.step()
    for name in NAMES:
        turns.residency.displace_unloaded(turns.names[name])
    assert turns.residency.displaced == {turns.names["b"], turns.names["c"]}


def test_a_displaced_model_that_is_loaded_again_is_displaced_no_more():
    turns = Turns(10, {"a": 6, "b": 6})
    for name in ("a", "b", "a"):
        turns.ask(name)
        for _ in range(4):
            turns.step()
    assert turns.held == {turns.names["a"]}
    assert turns.residency.displaced == {turns.names["b"]}


def test_without_a_limit_no_model_is_displaced():
    turns = Turns(0, {"a": 6})
    turns.residency.displace_unloaded(turns.names["a"])
    assert not turns.residency.displaced


def test_a_model_larger_than_all_there_may_be_is_one_line_and_the_others_serve_on():
    turns = Turns(10, {"a": 4, "b": 11, "c": 1, "d": 1})
    turns.ask("a")
    turns.ask("b")
    for _ in range(5):
        turns.step()
    assert turns.answered == [1]
    state, why = turns.batcher.model_states()[turns.names["b"]]
    assert state is ModelState.COLD
    assert "loaded_gib allows" in why
    assert turns.state("a") is ModelState.READY


def test_up_to_the_number_that_may_be_loaded_nothing_makes_room():
    batcher = Batcher([], 4)
    names = []
    for name in ("a", "b", "c"):
        card = msgspec.structs.replace(CARD, ref=msgspec.structs.replace(CARD.ref, name=name))
        batcher.add_model(card)
        names.append(card.name)
    residency = ModelResidency(HubSettings(max_loaded=2), batcher)
    for number, name in enumerate(names[:2]):
        assert residency.make_room(batcher.load(name), 0.0) == [LoadModel(name)]
        batcher.on_loaded(name, "", float(number))
    assert residency.displaced == set()
    assert residency.make_room(batcher.load(names[2]), 2.0) == [LoadModel(names[2]), UnloadModel(names[0])]
    assert residency.displaced == {names[0]}

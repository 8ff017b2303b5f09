"""The diagrams of the architecture page are the tables that the code obeys."""

from enum import Enum

from tests.diagrams import BLOCK, DIAGRAMS, PAGE, draw_page, draw_states


class Lamp(Enum):
    OFF = 1
    ON = 2


class Press(Enum):
    SHORT = "short press"
    LONG = "long press"


def test_the_page_shows_every_state_machine_as_its_table_is_now():
    text = PAGE.read_text()
    assert {block["name"] for block in BLOCK.finditer(text)} == set(DIAGRAMS)
    assert draw_page(text) == text, "run: make diagrams"


def test_a_diagram_has_one_arrow_for_each_pair_of_states_with_all_events_between_them():
    table: dict[Lamp, dict[Press, Lamp | None]] = {
        Lamp.OFF: {Press.SHORT: Lamp.ON, Press.LONG: Lamp.ON},
        Lamp.ON: {Press.SHORT: Lamp.OFF, Press.LONG: None},
    }
    assert draw_states(Lamp.OFF, table).splitlines() == [
        "```mermaid",
        "stateDiagram-v2",
        "    [*] --> OFF",
        "    OFF --> ON: short press, long press",
        "    ON --> OFF: short press",
        "    ON --> [*]: long press",
        "```",
    ]

"""Draw the state machines of `docs/architecture.md` from the tables that the code obeys: `make diagrams`.

A diagram stands between two comments, `<!-- diagram: NAME -->` and `<!-- end of diagram -->`; the rest of the page is
written by people.
"""

import re
from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

from edge_agent.question import questions
from tests import ROOT

PAGE = ROOT / "docs" / "architecture.md"
OUTSIDE = "[*]"  # mermaid's name for where a machine begins and ends
State = TypeVar("State", bound=Enum)
Event = TypeVar("Event", bound=Enum)
BLOCK = re.compile(r"(<!-- diagram: (?P<name>[a-z ]+) -->\n).*?(<!-- end of diagram -->)", re.DOTALL)


def draw_states(first: State, table: Mapping[State, Mapping[Event, State | None]]) -> str:
    """A mermaid state diagram of one literal table: one arrow for each pair of states, with all its events."""
    arrows: dict[tuple[str, str], list[str]] = {(OUTSIDE, first.name): []}
    for state, events in table.items():
        for event, following in events.items():
            arrow = (state.name, OUTSIDE if following is None else following.name)
            arrows.setdefault(arrow, []).append(str(event.value))
    lines = [
        f"    {start} --> {end}" + (f": {', '.join(events)}" if events else "")
        for (start, end), events in arrows.items()
    ]
    return "\n".join(("```mermaid", "stateDiagram-v2", *lines, "```", ""))


DIAGRAMS = {
    "a question on the device": lambda: draw_states(questions.FIRST_STATE, questions.TRANSITIONS),
}


def draw_page(text: str) -> str:
    """The text of the page with every diagram drawn anew. KeyError for a name that is not in `DIAGRAMS`."""
    return BLOCK.sub(lambda block: block[1] + DIAGRAMS[block["name"]]() + block[3], text)


if __name__ == "__main__":
    PAGE.write_text(draw_page(PAGE.read_text()))

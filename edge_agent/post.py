"""What comes down the links, handed on: verdicts and notes to the core, orders to the guard, proofs to the witness."""

from collections.abc import Callable

from edge_agent.guard import Guard
from edge_agent.hands import Hands
from edge_agent.intake import Heard, Intake
from edge_agent.parts import Parts
from edge_agent.witness import Witness
from wire.messages import Checkpoint, Mirror, Reason, Refusal, Welcome
from wire.transport import Incoming


class Post:
    """`refresh`: look for updates soon."""

    def __init__(
        self, parts: Parts, hands: Hands, sides: tuple[Guard, Witness], intake: Intake, refresh: Callable[[], object]
    ) -> None:
        self._parts = parts
        self._hands = hands
        self._guard, self._witness = sides
        self._intake = intake
        self._refresh = refresh

    def order(self, payload: bytes, line: str) -> None:
        """Empty: something new is published. A notice may be over by a newer policy."""
        order = self._intake.order(payload, line) if payload else None
        if not payload or (order is not None and self._guard.hear_order(order)):
            self._parts.counts["hints"] += 1
            self._refresh()

    def message(self, message: Incoming, line: str) -> None:
        core, now = self._parts.core, self._parts.clock.now()
        heard = self._intake.take(message.payload, core.epoch, line)
        if isinstance(heard, Heard):
            self._hands.obey(core.on_verdict(heard.seq, heard.verdict, now))
        elif isinstance(heard, Checkpoint):
            self._witness.hear(heard)
        elif isinstance(heard, Mirror):
            self._guard.hear_mirror(heard)
        elif heard is not None:
            if isinstance(heard, Welcome):
                self._parts.link.on(line).spread(heard.spread_s)
                self._guard.look(at_once=True)  # now the time is known
            elif isinstance(heard, Refusal) and heard.reason is Reason.POLICY_OLD:
                self._refresh()
            self._hands.obey(core.on_note(heard, now, line))

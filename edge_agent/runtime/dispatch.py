"""Dispatcher of messages from hubs: verdicts to the core, orders to the policy monitor, assignments to the install."""

from collections.abc import Callable
from typing import Protocol

from edge_agent.core.hubs import HOME
from edge_agent.runtime.executor import CommandExecutor
from edge_agent.runtime.maintenance import Guard
from edge_agent.uplink.inbound import Heard, Intake
from edge_agent.uplink.reports import Outgoing
from edge_agent.uplink.services import Parts
from edge_agent.uplink.witness import Witness
from wire.protocol.messages import Checkpoint, Mirror, Prediction, Reason, Refusal, Welcome
from wire.protocol.rollout import Assignment, ReportSeen
from wire.transport.base import Incoming


class OrderListener(Protocol):
    """The agent, as it receives what hubs order."""

    def refresh(self) -> object:
        """Look for updates soon."""
        ...

    def take_assignment(self, assignment: Assignment) -> None:
        """Our home hub assigns a model to this device."""
        ...


class Post:
    """Verifies each message and hands it to the component that it concerns.

    `judged(seq, prediction)`: called with each verdict before the core gets it. `orders`: receives assignments and
    hints.
    """

    def __init__(
        self,
        parts: Parts,
        executor: CommandExecutor,
        sides: tuple[Guard, Witness, Outgoing],
        *,
        judged: Callable[[int, Prediction], None],
        orders: OrderListener,
    ) -> None:
        self._parts = parts
        self._executor = executor
        self._guard, self._witness, self._outgoing = sides
        self._intake = Intake(parts.envelopes, parts.pending, parts.clock, parts.counts)
        self._judged = judged
        self._orders = orders

    def order(self, payload: bytes, line: str) -> None:
        """Handle a message of `down/desired`: an update hint (empty), a deny-all order, or an assignment.

        A new deny-all order also makes the device look for updates: a newer policy may end it. Only the home hub may
        assign.
        """
        order = self._intake.order(payload, line) if payload else None
        if isinstance(order, Assignment):
            self._parts.counts["assignments"] += 1
            if line == HOME:
                self._orders.take_assignment(order)
        elif not payload or (order is not None and self._guard.hear_order(order)):
            self._parts.counts["hints"] += 1
            self._orders.refresh()

    def message(self, message: Incoming, line: str) -> None:
        """Handle a message of the reply topic: a verdict, a checkpoint, or a note."""
        core, now = self._parts.core, self._parts.clock.now()
        heard = self._intake.take(message.payload, core.epoch, line)
        if isinstance(heard, Heard):
            self._judged(heard.seq, heard.verdict.prediction)
            self._executor.execute(core.on_verdict(heard.seq, heard.verdict, now))
        elif isinstance(heard, Checkpoint):
            self._witness.hear(heard)
        elif isinstance(heard, Mirror):
            self._guard.hear_mirror(heard)
        elif isinstance(heard, ReportSeen):
            self._outgoing.hear(heard)
        elif heard is not None:
            if isinstance(heard, Welcome):
                self._parts.connections.on(line).spread(heard.spread_s)
                self._guard.look(at_once=True)  # now the time is known
            elif isinstance(heard, Refusal) and heard.reason is Reason.POLICY_OLD:
                self._orders.refresh()
            self._executor.execute(core.on_note(heard, now, line))

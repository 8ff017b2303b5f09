"""Dispatcher of messages from hubs: verdicts to the core, orders to the policy monitor, assignments to the install."""

from collections.abc import Callable
from typing import Protocol

from edge_agent.question.questions import HOME
from edge_agent.question.seal import InboundVerifier, VerifiedVerdict
from edge_agent.runtime.executor import CommandExecutor
from edge_agent.runtime.maintenance import PolicyContextMonitor
from edge_agent.uplink.reports import RolloutReporter
from edge_agent.uplink.services import AgentServices
from edge_agent.uplink.witness import WitnessClient
from wire.protocol.messages import CheckpointNote, Prediction, Refusal, RefusalReason, SpendMirror, WelcomeNote
from wire.protocol.rollout import Assignment, ReportReceipt
from wire.transport.base import IncomingMessage


class OrderListener(Protocol):
    """The agent, as it receives what hubs order."""

    def refresh(self) -> object:
        """Look for updates soon."""
        ...

    def take_assignment(self, assignment: Assignment) -> None:
        """Our home hub assigns a model to this device."""
        ...


class InboundDispatcher:
    """Verifies each message and hands it to the component that it concerns.

    `judged(seq, prediction)`: called with each verdict before the core gets it. `orders`: receives assignments and
    hints.
    """

    def __init__(
        self,
        parts: AgentServices,
        executor: CommandExecutor,
        sides: tuple[PolicyContextMonitor, WitnessClient, RolloutReporter],
        *,
        judged: Callable[[int, Prediction], None],
        orders: OrderListener,
    ) -> None:
        self._parts = parts
        self._executor = executor
        self._guard, self._witness, self._outgoing = sides
        self._intake = InboundVerifier(parts.envelopes, parts.pending, parts.clock, parts.counts)
        self._judged = judged
        self._orders = orders

    def dispatch_order(self, payload: bytes, line: str) -> None:
        """Handle a message of `down/desired`: an update hint (empty), a deny-all order, or an assignment.

        A new deny-all order also makes the device look for updates: a newer policy may end it. Only the home hub may
        assign.
        """
        order = self._intake.open_order(payload, line) if payload else None
        if isinstance(order, Assignment):
            self._parts.counts["assignments"] += 1
            if line == HOME:
                self._orders.take_assignment(order)
        elif not payload or (order is not None and self._guard.on_deny_all(order)):
            self._parts.counts["hints"] += 1
            self._orders.refresh()

    def dispatch_message(self, message: IncomingMessage, line: str) -> None:
        """Handle a message of the reply topic: a verdict, a checkpoint, or a note."""
        core, now = self._parts.core, self._parts.clock.now()
        heard = self._intake.open_reply(message.payload, core.epoch, line)
        if isinstance(heard, VerifiedVerdict):
            self._judged(heard.seq, heard.verdict.prediction)
            self._executor.execute(core.on_verdict(heard.seq, heard.verdict, now))
        elif isinstance(heard, CheckpointNote):
            self._witness.on_checkpoint(heard)
        elif isinstance(heard, SpendMirror):
            self._guard.on_mirror(heard)
        elif isinstance(heard, ReportReceipt):
            self._outgoing.on_acknowledged(heard)
        elif heard is not None:
            if isinstance(heard, WelcomeNote):
                self._parts.connections.connection_for(line).set_reconnect_spread(heard.spread_s)
                self._guard.refresh_context(at_once=True)  # now the time is known
            elif isinstance(heard, Refusal) and heard.reason is RefusalReason.POLICY_OLD:
                self._orders.refresh()
            self._executor.execute(core.on_note(heard, now, line))

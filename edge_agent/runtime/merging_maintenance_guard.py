"""What holds for a device beside its questions: where and when it is, a hub's notices, what is left of its budgets.

Law: a notice counts once it is on disk and ends by a policy alone; what a hub remembers of our spending only adds.
"""

from functools import partial
from typing import Any

from edge_agent.runtime.executor import CommandExecutor
from edge_agent.storage import merging_schema_marker, merging_tables_meta
from edge_agent.system.environment import Attributes, Surroundings
from edge_agent.uplink.services import Parts
from policies.decisions import budget
from policies.model.policy import Coin, Policy
from wire.protocol.messages import DenyAll, Mirror
from wire.protocol.topics import tenant_of

NOTICE = "notice"  # its key in the table `meta`
LEDGER_LOST = "ledger_lost"
BUDGET_SPENT = "budget_spent"
_LOOK_S = 5.0


class Guard:
    """Owned by the event loop; a side of the agent's status."""

    def __init__(self, parts: Parts, executor: CommandExecutor, attributes: Attributes, device: str) -> None:
        self._parts = parts
        self._core = parts.core
        self._executor = executor
        self._around = Surroundings(attributes.of(tenant_of(device)), parts.clock)
        self._looked_at = float("-inf")
        self._why = ""

    def look(self, *, at_once: bool = False) -> None:
        """Every few seconds: what rules ask of this moment."""
        now = self._parts.clock.now()
        if at_once or now - self._looked_at >= _LOOK_S:
            self._looked_at = now
            self._see(self._core.policy)

    def expect(self, policy: Policy | None) -> None:
        """It will be in force in a moment, and may ask for other zones."""
        self._see(policy)

    def _see(self, policy: Policy | None) -> None:
        around = self._around.look(policy.zones if policy else ())
        self._executor.execute(self._core.on_surroundings(around, self._parts.clock.now()))

    def hear_order(self, order: DenyAll) -> bool:
        """True if it is news: then our policy may be the reason, and a newer one the end of it."""
        if not self._core.on_notice(order.counter):
            return False
        self._why = order.why
        self._parts.counts["notices"] += 1
        self._parts.database.write((partial(merging_tables_meta.raise_to, key=NOTICE, value=order.counter),), must=True)
        return True

    def hear_mirror(self, mirror: Mirror) -> None:
        """One of another epoch answers an earlier database."""
        if mirror.epoch == self._core.epoch:
            self._parts.counts["mirrors"] += 1
            if mirror.complete and not self._core.ruling.purse.mirrored:
                path = self._parts.database.path
                self._parts.database.write((partial(merging_schema_marker.write, path=path),), must=True)
            self._executor.execute(self._core.on_mirror(mirror, self._parts.clock.now()))

    # For the status

    def facts(self) -> dict[str, Any]:
        """JSON-able."""
        ruling, policy = self._core.ruling, self._core.policy
        accounts = policy.base.accounts if policy else ()
        left = budget.left(accounts, ruling.purse.spend, ruling.day)
        return {
            "policy_name": policy.name if policy else "",
            "policy_version": policy.version if policy else 0,
            "policy_layers": [f"{part.layer}: {part.name}@{part.version}" for part in policy.layers] if policy else [],
            "budgets": {key: {"left": rest, "limit": limit} for key, (rest, limit) in left.items()},
            "notice": ruling.notice if ruling.noticed else 0,
            "notice_why": self._why if ruling.noticed else "",
        }

    def alarms(self) -> set[str]:
        ruling = self._core.ruling
        noticed = {"notice_in_force"} if ruling.noticed else set()
        spent = {BUDGET_SPENT} if ruling.purse.spend.known and self._spent() else set()
        return noticed | spent | (set() if ruling.purse.spend.known else {LEDGER_LOST})

    def _spent(self) -> bool:
        """An account of bytes no longer pays for a question: until it is filled again every answer is local."""
        ruling, policy = self._core.ruling, self._core.policy
        accounts = [each for each in policy.base.accounts if each.coin is Coin.BYTES] if policy else []
        left = budget.left(accounts, ruling.purse.spend, ruling.day)
        return any(rest < ruling.frame_bytes for rest, _ in left.values())

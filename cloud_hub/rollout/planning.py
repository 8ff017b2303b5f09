"""From what a person orders to a plan: which devices in which wave, how many people it takes, how its record begins.

Rule: pure. A plan says everything that will be done, so that what people approve is all of it.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from cloud_hub.rollout.types import Approval, Entry, Head, Plan, Record, RolloutError, RolloutState, Row, Target
from policies.rollout.plan import Member, RulesError, Selector, approvals, default_steps, ordered, parse, waves
from wire.errors import LocalError
from wire.protocol.topics import check_id


class Order(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a person wants. `id` "" = family, version and time; `back`: what the fleet runs now."""

    family: str
    target: Target
    to: str = "all"
    rules: dict[str, Any] = {}
    back: Target | None = None
    permit: str = ""
    id: str = ""


def plan_of(order: Order, members: Iterable[Member], by: str, now_ms: int) -> Plan:
    """RolloutError naming what cannot be."""
    known = tuple(members)
    try:
        rules = parse(order.rules)
        name = check_id(order.id or f"{order.family}-{order.target.version}-{now_ms // 1000:x}")
        order_of_devices = ordered(name, Selector.parse(order.to).pick(known), rules.lab)
        steps = rules.steps() or default_steps(len(order_of_devices))
        cut = waves(order_of_devices, steps)
    except (RulesError, LocalError) as error:
        raise RolloutError("invalid", str(error)) from None
    reached = sum(map(len, cut))
    if not reached:
        raise RolloutError("invalid", f"to = {order.to}: no device of this hub is meant, and a wave of nobody is none")
    if order.back is not None and order.target.version < order.back.version and not order.permit:
        raise RolloutError("refused", f"{order.target.version} is older than {order.back.version}: it takes a permit")
    return Plan(
        id=name,
        family=order.family,
        target=order.target,
        back=order.back,
        permit=order.permit,
        to=order.to,
        rules=msgspec.json.decode(msgspec.json.encode(rules)),
        waves=cut,
        spare=order_of_devices[reached:],
        fleet=len(known),
        people=approvals(rules, reached=reached, fleet=len(known), permit=bool(order.permit)),
        by=by,
        made_ms=now_ms,
    )


def record_of(plan: Plan, counters: dict[str, int] | None = None) -> tuple[Record, Entry]:
    """As it lies in the store before anything was done. Who starts it has seen it: that is the first approval."""
    rows = [Row(device, number) for number, wave in enumerate(plan.waves) for device in wave]
    rows += [Row(device, -1) for device in plan.spare]
    head = Head(changed_ms=plan.made_ms, approvals=(Approval(plan.by, plan.digest, plan.made_ms),))
    what = f"{plan.family} {plan.target.version} to {plan.size} devices"
    entry = Entry(1, plan.made_ms, plan.by, what="started", why=what, state=RolloutState.DRAFT)
    return Record(plan, head, rows, dict(counters or {}), entries=1), entry

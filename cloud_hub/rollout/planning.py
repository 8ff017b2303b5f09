"""Planning of a rollout: turns a person's order into waves of devices and a number of required approvals. Pure.

Rule: a plan says everything that will be done, so that what people approve is all of it.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from cloud_hub.rollout.types import Approval, Entry, Head, Plan, Record, RolloutError, RolloutState, Row, Target
from policies.rollout.plan import Member, RulesError, Selector, approvals, default_steps, ordered, parse, waves
from wire.errors import LocalError
from wire.protocol.topics import check_id


class Order(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a person orders: a target version for a selection of devices.

    `id` "" = made of family, version and time; `to`: selector of devices ("all", or device ids and tags); `rules`:
    parameters as in `policies.rollout.plan`; `back`: the version that the fleet runs now, None = no comparison;
    `permit`: path of the signed permit for an older version.
    """

    family: str
    target: Target
    to: str = "all"
    rules: dict[str, Any] = {}
    back: Target | None = None
    permit: str = ""
    id: str = ""


def plan_of(order: Order, members: Iterable[Member], by: str, now_ms: int) -> Plan:
    """Make the plan of an order for the devices `members`, ordered by `by` at hub time `now_ms`.

    Devices are put in a pseudo-random order that depends on the rollout's id, and cut into waves by the rules' steps.
    RolloutError (invalid, refused) names what cannot be: bad rules, an empty selection, a downgrade without a permit.
    """
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
        raise RolloutError("invalid", f"to = {order.to}: it selects no device of this hub")
    if order.back is not None and order.target.version < order.back.version and not order.permit:
        raise RolloutError("refused", f"{order.target.version} is older than {order.back.version}: a permit is needed")
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
    """Build the first record of a plan and its first history entry.

    Who starts a rollout has seen it: the first approval.

    `counters`: the highest assignment counter that each device was ever given for the family.
    """
    rows = [Row(device, number) for number, wave in enumerate(plan.waves) for device in wave]
    rows += [Row(device, -1) for device in plan.spare]
    head = Head(changed_ms=plan.made_ms, approvals=(Approval(plan.by, plan.digest, plan.made_ms),))
    what = f"{plan.family} {plan.target.version} to {plan.size} devices"
    entry = Entry(1, plan.made_ms, plan.by, what="started", why=what, state=RolloutState.DRAFT)
    return Record(plan, head, rows, dict(counters or {}), entries=1), entry

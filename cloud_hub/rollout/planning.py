"""Planning of a rollout: turns a person's order into waves of devices and a number of required approvals. Pure.

Rule: a plan says everything that will be done, so that what people approve is all of it.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from cloud_hub.rollout.types import (
    Approval,
    BundleTarget,
    HistoryEntry,
    RolloutError,
    RolloutHead,
    RolloutPlan,
    RolloutRecord,
    RolloutRow,
    RolloutState,
)
from policies.rollout_rules.plan import (
    DeviceSelector,
    FleetMember,
    RolloutRulesError,
    count_approvals,
    cut_waves,
    default_steps,
    order_devices,
    parse_rules,
)
from wire.errors import LocalError
from wire.protocol.topics import validate_device_id


class RolloutOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a person orders: a target version for a selection of devices.

    `id` "" = made of family, version and time; `to`: selector of devices ("all", or device ids and tags); `rules`:
    parameters as in `policies.rollout_rules.plan`; `back`: the version that the fleet runs now, None = no comparison;
    `permit`: path of the signed permit for an older version.
    """

    family: str
    target: BundleTarget
    to: str = "all"
    rules: dict[str, Any] = {}
    back: BundleTarget | None = None
    permit: str = ""
    id: str = ""


def build_plan(order: RolloutOrder, members: Iterable[FleetMember], by: str, now_ms: int) -> RolloutPlan:
    """Make the plan of an order for the devices `members`, ordered by `by` at hub time `now_ms`.

    Devices are put in a pseudo-random order that depends on the rollout's id, and cut into waves by the rules' steps.
    RolloutError (invalid, refused) names what cannot be: bad rules, an empty selection, a downgrade without a permit.
    """
    known = tuple(members)
    try:
        rules = parse_rules(order.rules)
        name = validate_device_id(order.id or f"{order.family}-{order.target.version}-{now_ms // 1000:x}")
        order_of_devices = order_devices(name, DeviceSelector.parse(order.to).select_devices(known), rules.lab)
        steps = rules.steps() or default_steps(len(order_of_devices))
        cut = cut_waves(order_of_devices, steps)
    except (RolloutRulesError, LocalError) as error:
        raise RolloutError("invalid", str(error)) from None
    reached = sum(map(len, cut))
    if not reached:
        raise RolloutError("invalid", f"to = {order.to}: it selects no device of this hub")
    if order.back is not None and order.target.version < order.back.version and not order.permit:
        raise RolloutError("refused", f"{order.target.version} is older than {order.back.version}: a permit is needed")
    return RolloutPlan(
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
        people=count_approvals(rules, reached=reached, fleet=len(known), permit=bool(order.permit)),
        by=by,
        made_ms=now_ms,
    )


def build_record(plan: RolloutPlan, counters: dict[str, int] | None = None) -> tuple[RolloutRecord, HistoryEntry]:
    """Build the first record of a plan and its first history entry.

    Who starts a rollout has seen it: the first approval.

    `counters`: the highest assignment counter that each device was ever given for the family.
    """
    rows = [RolloutRow(device, number) for number, wave in enumerate(plan.waves) for device in wave]
    rows += [RolloutRow(device, -1) for device in plan.spare]
    head = RolloutHead(changed_ms=plan.made_ms, approvals=(Approval(plan.by, plan.digest, plan.made_ms),))
    what = f"{plan.family} {plan.target.version} to {plan.size} devices"
    entry = HistoryEntry(1, plan.made_ms, plan.by, what="started", why=what, state=RolloutState.DRAFT)
    return RolloutRecord(plan, head, rows, dict(counters or {}), entries=1), entry

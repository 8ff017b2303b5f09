"""Judges a stored question once more, before it is sent: a policy may have changed, or have run out, meanwhile."""

from edge_agent.commands import Setup
from edge_agent.questions import Question
from policies.budget import Spend
from policies.judge import Permit, Price, covers, in_force, judge
from policies.leakage import Cleared
from policies.policy import Policy
from policies.reasons import Why


def denied_now(question: Question, policy: Policy | None, setup: Setup, cleared: Cleared, day: int) -> Why | None:
    """Why it may not leave any more; None if it may. It was charged when it was stored and is not charged again."""
    expired = in_force(policy, day) if policy is not None else None
    if expired is not None and expired.why is Why.DENIED_POLICY_EXPIRED:
        return expired.why
    if policy is not None and policy.hash == question.judged:
        return None
    price = Price(Spend(day, 0), 0, day)
    permit = judge(policy, setup.schema, setup.hubs, question.data_class, price, cleared)
    if not isinstance(permit, Permit) or question.target not in permit.targets:
        return Why.DENIED_POLICY_CHANGED
    if not covers(permit.egress, question.egress):
        return Why.DENIED_POLICY_CHANGED
    question.judged = permit.policy
    return None

"""Judges a stored question once more, before each time it is sent: what it was judged by may have changed meanwhile."""

from edge_agent.questions import Question
from edge_agent.ruling import Ruled, Ruling
from policies.judge import Permit, covers, in_force
from policies.locality import HubSite
from policies.reasons import Denied, Why


def denied_now(question: Question, ruling: Ruling) -> Why | None:
    """Why it may not leave any more; None if it may. It was charged when it was stored and is not charged again."""
    ruled = ruling.of(question.data_class)
    if isinstance(ruled, Denied) or ruled.denied:
        return ruled.denied.why if isinstance(ruled, Ruled) and ruled.denied else Why.DENIED_POLICY_CHANGED
    over = in_force(ruled.terms, ruling.day)
    if over is not None and over.why is Why.DENIED_POLICY_EXPIRED:
        return over.why
    if ruling.purse.overspent(question.charges):
        return Why.DENIED_BUDGET
    if ruled.terms.key == question.judged:
        return None
    permit = _permit(question, ruling)
    here = (question.target.name, question.target.region)  # its price may be another by now
    if permit is None or here not in {(hub.name, hub.region) for hub in permit.targets}:
        return Why.DENIED_POLICY_CHANGED
    question.judged = permit.terms
    return None


def others_now(question: Question, ruling: Ruling) -> tuple[HubSite, ...]:
    """Every other hub that may have it now. Nothing of its old permit counts: what fails to be judged goes nowhere."""
    permit = _permit(question, ruling)
    return tuple(hub for hub in permit.targets if hub.name != question.target.name) if permit else ()


def _permit(question: Question, ruling: Ruling) -> Permit | None:
    """For what was prepared when it was stored."""
    permit = ruling.permit_again(question.data_class)
    return permit if isinstance(permit, Permit) and covers(permit.egress, question.egress) else None

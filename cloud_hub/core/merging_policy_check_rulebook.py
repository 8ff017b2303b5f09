"""Does the policy that a question names let it come here? Judged again by what the hub knows itself. Pure.

Law: the device's word counts only where it narrows: the rules it names apply, and so do those that surely do by what
our registry says of it. A policy of which we lack a layer is judged by the layers we have: a layer can only narrow.
Only what people gave this hub makes a version too old; no question does.
"""

import re
from collections.abc import Iterable

import msgspec

from cloud_hub.registry.orders import Orders
from policies.decisions.leakage import Clearance
from policies.decisions.merging_routing_locality import HubSite
from policies.decisions.permit import recheck
from policies.language.merging_document_compose import composed, hash_of
from policies.model.merging_context_context import Context
from policies.model.policy import Part, Policy, Terms
from policies.model.reasons import Denied
from policies.model.terms import surely, terms_for
from wire.protocol.messages import Escalation, FieldSpec, Level, Reason
from wire.protocol.topics import tenant_of

DAY_S = 86_400.0
KEEP_DAYS = 7  # of a question whose policy says nothing of it
_HASH = re.compile(r"[0-9a-f]{32}")
_PARTLY = 1024  # compositions of which a layer is missing here that are remembered


class Facts(msgspec.Struct, frozen=True):
    """Of the device that asks, by our own registry; "" = not known."""

    device: str
    device_class: str = ""
    region: str = ""


class Travelling(msgspec.Struct, frozen=True):
    """Of the model that a question names: its fields as they travel, their highest label, what was measured of it."""

    schema: tuple[FieldSpec, ...]
    level: Level
    clearance: Clearance


class Rulebook:
    """`hashes`: policies whose questions are served, empty = any; `policies`: those of them that we have in full."""

    def __init__(self, site: HubSite, hashes: frozenset[str], policies: Iterable[Policy], orders: Orders) -> None:
        self._site = site
        self._any = not hashes
        self._hashes = frozenset(filter(_HASH.fullmatch, hashes))  # what is no hash, no question can name
        self._orders = orders
        self._policies: dict[str, Policy] = {}
        self._parts: dict[str, Part] = {}
        self._partly: dict[tuple[str, ...], Policy] = {}
        self.accept(policies)

    def accept(self, policies: Iterable[Policy]) -> None:
        """Serve these too, and from now on none older than the oldest of each name that is served."""
        for policy in policies:
            self._policies[policy.hash] = policy
            self._parts |= {part.hash: part for part in policy.layers}
        self._orders.learn(self._parts.values())
        self._partly.clear()

    def replace(self, policies: Iterable[Policy]) -> None:
        """Serve these instead: what they replace is too old from now on."""
        self._policies, self._parts, self._any = {}, {}, False
        self.accept(policies)
        self._hashes = frozenset(self._policies)

    def judge(self, question: Escalation, facts: Facts, of: Travelling, now: float) -> int | Reason:
        """For how many days anything of it may be kept here, or why it may not come."""
        policy = self._policy(question) if question.region == self._site.region else Reason.POLICY
        if isinstance(policy, Reason):
            return policy
        notice = self._orders.notice(facts.device)
        if notice and (policy is None or policy.clears_notice < notice.counter):
            return Reason.POLICY_OLD  # a document that we do not have clears nothing
        return question.keep_days if policy is None else self._under(policy, question, facts, of, now)

    def _under(self, policy: Policy, question: Escalation, facts: Facts, of: Travelling, now: float) -> int | Reason:
        terms = self._terms(policy, question, facts, of)
        if isinstance(terms, Denied) or terms.data_classes.get(question.data_class) is not True:
            return Reason.POLICY
        if recheck(terms, of.schema, question, site=self._site, day=int(now // DAY_S), cleared=of.clearance.of(terms)):
            return Reason.POLICY
        return min(question.keep_days, terms.retention.keep_days if terms.retention else KEEP_DAYS)

    def _policy(self, question: Escalation) -> Policy | Reason | None:
        """As far as we have it; None if we take questions under any. A layer below its floor is too old."""
        policy = self._policies.get(question.policy) or self._composed(question)
        hashes = [part.hash for part in policy.layers] if policy else [question.policy]
        if any(map(self._orders.is_old, (*hashes, *question.layers))):
            return Reason.POLICY_OLD
        if policy is None and not self._any and question.policy not in self._hashes:
            return Reason.POLICY
        return policy

    def _composed(self, question: Escalation) -> Policy | None:
        """Of the layers that are here. A question that misnames its layers has none."""
        layers = question.layers
        if not layers or hash_of(layers) != question.policy:
            return None
        if layers not in self._partly and any(layer in self._parts for layer in layers):
            if len(self._partly) >= _PARTLY:
                self._partly.clear()
            self._partly[layers] = composed(tuple(self._parts[layer] for layer in layers if layer in self._parts))
        return self._partly.get(layers)

    def _terms(self, policy: Policy, question: Escalation, facts: Facts, of: Travelling) -> Terms | Denied:
        tenant = tenant_of(facts.device)
        known = Context(question.data_class, facts.device_class, facts.region, tenant, level=of.level)
        return terms_for(policy, {*_named(policy, question), *surely(policy, known)})


def _named(policy: Policy, question: Escalation) -> set[str]:
    """The rules a device named, but for those of layers that we do not have. A name that no layer here has denies."""
    named = set(filter(None, question.rule.split("+")))
    if len(policy.layers) == len(question.layers) or not question.layers:
        return named
    ours = {part.name: part for part in policy.layers}
    mine = {rule for rule in named if rule.partition("/")[0] in ours}
    return mine if len(ours) > 1 else {rule.partition("/")[2] for rule in mine}

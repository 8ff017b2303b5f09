"""Measures what the demo's bundle leaks under a template: each feature chain that the policy makes is attacked once.

Rule: nothing above P1 leaves unmeasured, in a demo neither. Findings are cached beside the bundle, by chain.
"""

import shutil
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

from models.bundle.bundle import Bundle, open_bundle
from models.bundle.manifest import BundleError
from models.runtime.chain import digest_chain
from policies.analysis.facts import SampleFacts, build_context
from policies.decisions import egress
from policies.decisions.egress import OPTIONAL_FIELDS, FieldPlan
from policies.model.policy import Policy
from policies.model.reasons import Denied
from policies.model.terms import resolve_terms
from simulations.demo.casts import DemoDevice, DemoScene

ReportProgress = Callable[[str, float], None]
Plans = tuple[FieldPlan, ...]


def measure_bundle(bundle: Bundle, policy: Policy, scene: DemoScene, tell: ReportProgress) -> Bundle:
    """The bundle itself where it has every leakage row already, else a copy beside it that has."""
    known = {row.chain for row in bundle.manifest.leakage}
    missing = {chain: plans for chain, plans in _list_chains(bundle, policy, scene).items() if chain not in known}
    if not missing:
        return bundle
    name = sha256("".join(sorted(missing)).encode()).hexdigest()[:16]
    path = bundle.path.with_name(f"{bundle.path.name}-{name}")
    try:
        return open_bundle(path)
    except BundleError:
        return _attack_chains(bundle, path, missing, tell)


def _attack_chains(bundle: Bundle, path: Path, missing: dict[str, Plans], tell: ReportProgress) -> Bundle:
    from models.forge.leakage.remeasure import remeasure_bundle, replace_leakage_rows  # noqa: PLC0415 - torch only when it runs
    from models.zoo.digits import samples  # noqa: PLC0415

    data, cases = samples(), []
    for at, plans in enumerate(missing.values()):
        steps = {plan.spec.name: plan.transforms for plan in plans}
        tell("attacking what would leave", at / len(missing))
        cases.append(remeasure_bundle(bundle, data, steps, "quick", lambda *_: None))
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(bundle.path, path)
    return replace_leakage_rows(open_bundle(path), cases)


def _list_chains(bundle: Bundle, policy: Policy, scene: DemoScene) -> dict[str, Plans]:
    """What could leave of this scene's samples, by the digest of its chain."""
    cut, codec = bundle.manifest.cut, bundle.manifest.codec
    return {digest_chain(cut, codec, plans): plans for plans in _list_plans(bundle, policy, scene)}


def _list_plans(bundle: Bundle, policy: Policy, scene: DemoScene) -> Iterator[Plans]:
    for facts in (build_facts(cast, name) for cast in scene.cast for name in cast.classes):
        found = resolve_terms(policy, build_context(policy, facts))
        out = (
            found
            if isinstance(found, Denied)
            else egress.decide_egress(found, bundle.manifest.features, facts.data_class)
        )
        if not isinstance(out, Denied):
            yield tuple(plan for plan in out.fields if plan.spec.name not in OPTIONAL_FIELDS)


def build_facts(cast: DemoDevice, data_class: str, confidence: float = 0.0) -> SampleFacts:
    """Policy facts of a device of the scene; it is on mains or its battery is low."""
    told = cast.device
    return SampleFacts(
        confidence,
        data_class,
        region=str(told.get("region", "")),
        tenant="demo",
        tags=tuple(told["tags"]) if "tags" in told else None,
        metered=told.get("metered"),
        battery=0.0 if cast.low_battery else 1.0,
    )

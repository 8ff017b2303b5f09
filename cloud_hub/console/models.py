"""Models: every version with its state and users; one version with its measured figures, and its leakage beside limits.

Rule: whether what a model's codes give away is within a policy's limits is said by the code that refuses questions.
"""

from functools import partial
from typing import NamedTuple

from aiohttp import web

from cloud_hub.api.interface import ApiContext
from cloud_hub.console.pages import ConsolePage, PageContent, PageGroup, Viewer
from cloud_hub.core.web_requests import InferRefusedError
from cloud_hub.engine.types import ModelCard
from models.runtime.chain import digest_sent_chain
from policies.analysis.summary import describe_asking
from policies.analysis.wording import privacy_words
from policies.decisions.leakage import LeakageEvidence, assess_leakage
from policies.model.policy import Policy
from wire.http.oip import OipError, shorten_name

_STATES = {"READY": "ready", "LOADING": "loading", "UNLOADING": "warn", "UNAVAILABLE": "unloaded"}


class PolicyLimit(NamedTuple):
    """One policy's limits for a model.

    `asks`: when its devices ask about a sample; `denied`: why the model's codes may not leave under it, "" if they may.
    """

    policy: str
    asks: str
    limits: str
    denied: str


class ModelPages:
    """The pages of models."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context

    def group(self) -> PageGroup:
        """Return the pages of this group."""
        pages = (
            ConsolePage("/models", self.list_all, "models"),
            ConsolePage("/models/{model}", self.show, "models"),
        )
        return PageGroup(pages, {"models": lambda _about, _viewer: self._context.versions.list_models()})

    async def list_all(self, _request: web.Request, _viewer: Viewer) -> PageContent:
        """Show every version."""
        now_ms, versions = self._context.now_ms(), self._context.versions
        rows = [
            {
                "model": f"{kept.name}@{kept.version}",
                "state": _STATES.get(kept.state, "unloaded"),
                "reason": kept.reason,
                "users": len(versions.devices_using(f"{kept.name}@{kept.version}", now_ms)),
                "setup": self._context.engines.setups().get(f"{kept.name}@{kept.version}"),
            }
            for kept in versions.list_models()
        ]
        return PageContent("model_list.html", {"models": rows}, "Models", topic="models")

    async def show(self, request: web.Request, _viewer: Viewer) -> PageContent:
        """Show one version; 404 if this hub has none of this name."""
        name = request.match_info["model"]
        try:
            card = self._context.versions.describe(name)
            users = self._context.versions.devices_using(name, self._context.now_ms())
        except InferRefusedError:
            raise OipError(404, f"This hub has no model '{shorten_name(name)}'.") from None
        listed = self._context.versions.list_models()
        kept = next((each for each in listed if f"{each.name}@{each.version}" == name), None)
        values = {
            "card": card,
            "manifest": card.manifest,
            "state": _STATES.get(kept.state, "unloaded") if kept else "unloaded",
            "reason": kept.reason if kept else "",
            "setup": self._context.engines.setups().get(name),
            "users": sorted(users)[:50],
            "user_count": len(users),
            "limits": [judge_policy(policy, card) for policy in self._context.hub.policies],
            "leakage": sorted(card.leakage, key=lambda row: (row.kind, row.subject, row.metric, -row.upper95)),
        }
        return PageContent("model.html", values, name, topic="models")


def judge_policy(policy: Policy, card: ModelCard) -> PolicyLimit:
    """Say what a policy limits, and whether a model's codes may leave under it where no rule applies."""
    evidence = LeakageEvidence(card.leakage, partial(digest_sent_chain, card.ref.cut, card.ref.codec))
    finding = assess_leakage(policy.base, card.features, evidence)
    denied = finding.denied.detail if finding.denied else ""
    return PolicyLimit(
        f"{policy.name}@{policy.version}", describe_asking(policy.base), privacy_words(policy.base.privacy), denied
    )

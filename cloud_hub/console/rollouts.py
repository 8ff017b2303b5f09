"""Rollouts as they happen: the list, and one with its waves, the evidence against its bounds, its devices, its history.

Rule: the buttons of a page are the commands of `skerry rollout`; which of them a state allows is what the rollout's own
table of states says.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from aiohttp import web
from sqlalchemy.exc import SQLAlchemyError

from cloud_hub.api.interface import ApiContext
from cloud_hub.console.pages import ConsolePage, PageContent, PageGroup, Viewer, cut_page
from cloud_hub.rollout.controller import RolloutController
from cloud_hub.rollout.looks import GateLook
from cloud_hub.rollout.types import PAUSED, TERMINAL, UNDER_WAY, HistoryEntry, RolloutError, RolloutState
from cloud_hub.rollout.view import RolloutView
from wire.http.oip import OipError

_PAUSABLE = UNDER_WAY | {RolloutState.READY, RolloutState.PAUSED_INCONCLUSIVE}


class RolloutPages:
    """The pages of rollouts."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context

    def group(self) -> PageGroup:
        """Return the pages of this group."""
        pages = (
            ConsolePage("/rollouts", self.list_all, "rollouts"),
            ConsolePage("/rollouts/{rollout}", self.show, "rollouts"),
        )
        return PageGroup(pages, {"rollouts": self._digest_all, "rollout": self._digest_one})

    def _digest_all(self, _about: str, _viewer: Viewer) -> object:
        return tuple((v.id, v.state, v.wave, v.states) for v in self._views())

    def _digest_one(self, about: str, _viewer: Viewer) -> object:
        control = self._context.rollouts
        try:
            return (control.view(about), len(control.looks(about))) if control else None
        except RolloutError:
            return None

    def _views(self) -> tuple[RolloutView, ...]:
        return self._context.rollouts.views() if self._context.rollouts else ()

    async def list_all(self, _request: web.Request, _viewer: Viewer) -> PageContent:
        """Show every rollout, newest first."""
        views = self._views()
        values = {
            "views": views,
            "done": {view.id: view.states.get("succeeded", 0) for view in views},
            "under_way": [view for view in views if view.state not in TERMINAL],
            "has_control": self._context.rollouts is not None,
            "example": self._find_example(),
        }
        return PageContent("rollouts.html", values, "Rollouts", topic="rollouts")

    def _find_example(self) -> str:
        """The newest version that this hub lists, as an example of what to type; a pattern where it lists none."""
        listed = self._context.versions.list_models()
        newest = max(listed, key=lambda kept: int(kept.version), default=None)
        return f"{newest.name}@{newest.version}" if newest else "MODEL@VERSION"

    async def show(self, request: web.Request, _viewer: Viewer) -> PageContent:
        """Show one rollout; 404 if there is none of this id."""
        control = self._control()
        try:
            view = control.view(request.match_info["rollout"])
            looks, devices = control.looks(view.id), control.devices(view.id)
            history: Sequence[HistoryEntry] = await control.history(view.id)
        except RolloutError as error:
            raise OipError(404, str(error)) from None
        except SQLAlchemyError:
            history = ()
        wave = request.query.get("wave", "")
        picked = [row for row in devices if not wave or str(row.wave) == wave]
        cut = cut_page(request, len(picked))
        values = {
            "view": view,
            "ended": view.state in TERMINAL,
            "may_pause": view.state in _PAUSABLE,
            "may_resume": view.state in PAUSED,
            "may_approve": view.state is RolloutState.WAITING_APPROVAL,
            "evidence": draw_evidence(looks[-1]) if looks else None,
            "plot": plot_looks(looks),
            "looks": looks,
            "devices": picked[cut.start : cut.stop],
            "cut": cut,
            "query": {"wave": wave[:4]},
            "history": list(reversed(history))[:100],
        }
        return PageContent("rollout.html", values, view.id, topic=f"rollout:{view.id}")

    def _control(self) -> RolloutController:
        if self._context.rollouts is None:
            raise OipError(404, "This hub has no rollouts.")
        return self._context.rollouts


class EvidenceBar(NamedTuple):
    """The last look as a drawing on an axis from 0 to 100 %: where zero, the bounds and the interval are."""

    zero: float
    low: float
    high: float
    effect: float
    margin: float
    harm: float
    look: GateLook


def draw_evidence(look: GateLook) -> EvidenceBar:
    """Place a look's interval and bounds on an axis that reaches 1.6 times the margin to either side."""
    reach = max(look.margin * 1.6, 0.02)

    def place(value: float) -> float:
        return round(50 + 50 * max(-1.0, min(1.0, value / reach)), 2)

    return EvidenceBar(
        zero=place(0.0),
        low=place(look.low),
        high=place(look.high),
        effect=place(look.effect),
        margin=place(-look.margin),
        harm=place(-look.harm),
        look=look,
    )


def plot_looks(looks: Sequence[GateLook]) -> dict[str, Any]:
    """Return the plot of the evidence over the looks: the difference in points with its interval, and its bounds."""
    if not looks:
        return {}
    last = looks[-1]
    points = {
        "label": "better or worse by, points",
        "values": [round(100 * each.effect, 3) for each in looks],
        "low": [round(100 * max(each.low, -2 * each.margin - 0.1), 3) for each in looks],
        "high": [round(100 * min(each.high, 2 * each.margin + 0.1), 3) for each in looks],
    }
    marks = [
        {"at": 0, "label": "as good as before"},
        {"at": round(-100 * last.margin, 3), "label": "a pass rules out worse than this", "bad": True},
    ]
    return {"kind": "lines", "times": [each.at_ms // 1000 for each in looks], "series": [points], "marks": marks}

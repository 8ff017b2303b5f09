"""Policies: what may leave under each that this hub serves, and what a new document would change if it is published."""

from typing import Any

import msgspec
from aiohttp import web

from cloud_hub.api.interface import ApiContext
from cloud_hub.api.policies import POLICIES_PATH, compare_document, days_left, describe_policy, read_document
from cloud_hub.console.pages import ConsolePage, PageContent, PageGroup, Viewer
from wire.http.oip import OipError

COMPARE_PATH = "/policies/compare"


class PolicyPages:
    """The pages of policies."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context

    def group(self) -> PageGroup:
        """Return the pages of this group."""
        pages = (
            ConsolePage("/policies", self.list_all, "policies"),
            ConsolePage(COMPARE_PATH, self.show_form, "policies"),
            ConsolePage(COMPARE_PATH, self.compare, "policies", method="POST"),
        )
        return PageGroup(pages, {"policies": lambda _about, _viewer: tuple(p.hash for p in self._context.hub.policies)})

    async def list_all(self, _request: web.Request, _viewer: Viewer) -> PageContent:
        """Show the policies served, in words."""
        policies, now_ms = self._context.hub.policies, self._context.now_ms()
        shown = [{**describe_policy(each), "days": days_left(each, now_ms)} for each in policies]
        return PageContent("policy_list.html", {"policies": shown}, "Policies", topic="policies")

    async def show_form(self, _request: web.Request, _viewer: Viewer) -> PageContent:
        """Show the form that takes a document."""
        return self._show({})

    async def compare(self, request: web.Request, _viewer: Viewer) -> PageContent:
        """Show what the form's document would change. Nothing is kept of it."""
        try:
            document = await read_document(request)
            found = await compare_document(self._context, document)
        except OipError as error:
            return self._show({"fault": str(error)})
        if found.error:
            return self._show({"fault": found.error, "document": document})
        return self._show({"comparison": msgspec.to_builtins(found), "document": document})

    def _show(self, found: dict[str, Any]) -> PageContent:
        empty = {"comparison": None, "document": "", "fault": ""}
        names = [part.name for policy in self._context.hub.policies for part in policy.layers]
        more = {"publish_path": POLICIES_PATH, "can_publish": self._context.publish_policy is not None, "names": names}
        return PageContent("compare.html", {**empty, **found, **more}, "Compare a policy")

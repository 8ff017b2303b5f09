"""HTTP route `/v1/policy`: the policy that this device obeys now, in sentences.

Rule: what makes sentences of a policy is imported when somebody asks: a device that nobody looks at has no need of it.
"""

from collections.abc import Callable

import msgspec
from aiohttp import web

from policies.model.policy import Policy


class PolicyRoutes:
    """The route. `policy`: returns the policy obeyed now, None while there is none."""

    def __init__(self, policy: Callable[[], Policy | None]) -> None:
        self._policy = policy

    def route_table(self) -> list[web.RouteDef]:
        """The route with its handler, for `web.Application.add_routes`."""
        return [web.get("/v1/policy", self.show_policy)]

    async def show_policy(self, _: web.Request) -> web.Response:
        """`GET /v1/policy`: its hash, name, version, last day, and `words`; all empty without a policy."""
        from policies.analysis.summary import summarise_policy  # noqa: PLC0415 - see the rule above

        policy = self._policy()
        facts = {
            "hash": policy.hash if policy else "",
            "name": policy.name if policy else "",
            "version": policy.version if policy else 0,
            "expires": policy.expires if policy else "",
            "words": summarise_policy(policy) if policy else [],
        }
        return web.Response(body=msgspec.json.encode(facts), content_type="application/json")

"""Route `GET /v1/costs`: what was used by day, tenant, model and region, and what it costs.

Rule: a tenant's key sees that tenant's lines and no others.
"""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from aiohttp import web

from cloud_hub.api.auth import caller_of
from cloud_hub.api.interface import ApiContext
from cloud_hub.api.routing import Route, RouteAccess, answer_json
from cloud_hub.registry.access import Scope
from cloud_hub.storage.costs import DAY_MS, KEPT_DAYS, CostEntry
from cloud_hub.storage.prices import BillLine, PriceList, write_bill
from wire.http.oip import OipError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DEFAULT_DAYS = 31


class CostRoutes:
    """The route."""

    def __init__(self, context: ApiContext) -> None:
        self._store = context.store
        self._prices = context.prices
        self._now_ms = context.now_ms

    def routes(self) -> list[Route]:
        """Return the route of this group."""
        days = {"type": "integer", "minimum": 1, "maximum": KEPT_DAYS, "default": _DEFAULT_DAYS}
        says = "What was used and what it costs, by day, tenant, model and region; `days`: today and those before it"
        return [
            Route(
                "GET", "/v1/costs", self.show_costs, says, RouteAccess.KEY, scope=Scope.READ, parameters={"days": days}
            )
        ]

    async def show_costs(self, request: web.Request) -> web.Response:
        """Answer with the bill: 200; 400 for a wrong number of days."""
        since_day = self._now_ms() // DAY_MS - _read_days(request) + 1
        entries = await self._store.read_costs(since_day, caller_of(request).tenant or None)
        return answer_json(bill_json(entries, self._prices()))


def bill_json(entries: list[CostEntry], prices: PriceList) -> dict[str, Any]:
    """Return a bill as the API and the CLI show it. `price` null: no currency is set, so there are no prices."""
    lines = write_bill(entries, prices)
    total = round(sum(line.price for line in lines), 6) if prices.currency else None
    told = [_line_json(line, priced=bool(prices.currency)) for line in lines]
    return {"currency": prices.currency, "total": total, "costs": told}


def _line_json(line: BillLine, *, priced: bool) -> dict[str, Any]:
    day = (_EPOCH + timedelta(days=line.day)).date().isoformat()
    return {**msgspec.structs.asdict(line), "day": day, "price": line.price if priced else None}


def _read_days(request: web.Request) -> int:
    text = request.query.get("days", str(_DEFAULT_DAYS))
    if not (text.isascii() and text.isdecimal() and len(text) <= 4 and 1 <= int(text) <= KEPT_DAYS):
        raise OipError(400, f"days is a whole number from 1 to {KEPT_DAYS}")
    return int(text)

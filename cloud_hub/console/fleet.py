"""The fleet: an index of all devices that is made anew at most so often, and the page that shows a part of it.

Rule: what is shown of a device is what `GET /v1/admin/devices` says of it to the same caller.
"""

import contextlib
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from aiohttp import web
from sqlalchemy.exc import SQLAlchemyError

from cloud_hub.api.admin import describe_device
from cloud_hub.api.interface import ApiContext
from cloud_hub.console.pages import ConsolePage, PageContent, PageGroup, Viewer, cut_page, read_choice
from cloud_hub.console.wording import summarise_question
from cloud_hub.registry.health import URGENT, WORRYING, DeviceHealth, judge_health
from cloud_hub.storage.question_history import QuestionRecord

LEAST_S, MOST_S = 1.0, 10.0  # between two indexes
S_PER_DEVICE = 0.0005
MAX_SEARCH = 64
MAX_OVERVIEWS = 50  # of tenants
NEWEST = 6  # questions of all devices
MAX_NAMED = 1000  # devices whose names stand in the map
NO_SITE = "no site"
_SORTS = ("device", "health", "seen", "site")
_ORDER = {health: place for place, health in enumerate(DeviceHealth)}


class FleetRow(NamedTuple):
    """One device as the index knows it."""

    device: str
    tenant: str
    site: str
    health: DeviceHealth
    last_seen_ms: int
    models: tuple[str, ...]


class FleetCounts(NamedTuple):
    """Numbers of devices: all, by health, by site and health, by model."""

    devices: int
    health: Counter[DeviceHealth]
    sites: dict[str, Counter[DeviceHealth]]
    models: Counter[str]


class FleetIndex:
    """All devices in one list. Large fleets are listed less often, so that looking costs a small share of a core."""

    def __init__(self, context: ApiContext, clock: Callable[[], float] = time.monotonic) -> None:
        self._context = context
        self._clock = clock
        self._made_s = float("-inf")
        self._rows: tuple[FleetRow, ...] = ()
        self.revision = 0  # grows when a row has changed
        self._overviews: dict[str, tuple[int, FleetOverview | None]] = {}  # by tenant

    def rows(self) -> tuple[FleetRow, ...]:
        """Return every device, by id."""
        least_s = min(MOST_S, max(LEAST_S, S_PER_DEVICE * len(self._rows)))
        if self._clock() - self._made_s >= least_s:
            found = self._read_rows()
            self.revision += found != self._rows
            self._rows, self._made_s = found, self._clock()
        return self._rows

    def rows_for(self, viewer: Viewer) -> tuple[FleetRow, ...]:
        """Return the devices that a caller may see."""
        rows = self.rows()
        return rows if viewer.whole else tuple(row for row in rows if viewer.caller.sees_tenant(row.tenant))

    def overview_for(self, viewer: Viewer) -> "FleetOverview":
        """Return what the page shows of all devices that a caller may see; made once for each state of the fleet."""
        rows, tenant = self.rows_for(viewer), viewer.caller.tenant
        revision, known = self._overviews.get(tenant, (-1, None))
        if known is None or revision != self.revision:
            if len(self._overviews) >= MAX_OVERVIEWS:
                self._overviews.clear()
            known = FleetOverview(rows, self.count(rows), _draw_map(rows))
            self._overviews[tenant] = self.revision, known
        return known

    def count(self, rows: tuple[FleetRow, ...]) -> FleetCounts:
        """Count devices by what the page shows."""
        sites: dict[str, Counter[DeviceHealth]] = {}
        for row in rows:
            sites.setdefault(row.site, Counter())[row.health] += 1
        health: Counter[DeviceHealth] = sum(sites.values(), Counter())
        models = Counter(model for row in rows for model in row.models)
        return FleetCounts(len(rows), health, dict(sorted(sites.items())), models)

    def _read_rows(self) -> tuple[FleetRow, ...]:
        context, now_ms = self._context, self._context.now_ms()
        flawed = context.ledger.flawed if context.ledger else frozenset[str]()
        rows = []
        for device in context.registry.devices():
            activity = context.hub.device_activity(device.id)
            health = judge_health(device, activity, now_ms, flawed=device.id in flawed)
            rows.append(
                FleetRow(
                    device.id, device.tenant, device.region or NO_SITE, health, activity.last_seen_ms, activity.models
                )
            )
        return tuple(rows)


class FleetOverview(NamedTuple):
    """The devices that a caller may see, their counts, and their map."""

    rows: tuple[FleetRow, ...]
    counts: FleetCounts
    sites: "list[MapSite]"


class FleetPages:
    """The page of the fleet."""

    def __init__(self, context: ApiContext, index: FleetIndex) -> None:
        self._context = context
        self._index = index
        self._newest: list[QuestionRecord] = []
        self._read_s = float("-inf")

    def group(self) -> PageGroup:
        """Return the pages of this group."""
        pages = (
            ConsolePage("/", self.show, "fleet", whole=False),
            ConsolePage("/devices", self.find, "fleet", whole=False),
        )
        return PageGroup(pages, {"fleet": self._digest})

    def _digest(self, _about: str, _viewer: Viewer) -> object:
        self._index.rows()
        return self._index.revision

    async def show(self, request: web.Request, viewer: Viewer) -> PageContent:
        """Show counts, the map by site, and one page of the devices that the query picks."""
        rows, counts, sites = self._index.overview_for(viewer)
        picked = _pick_rows(rows, request)
        cut = cut_page(request, len(picked))
        values = {
            "counts": counts,
            "urgent": sum(counts.health[each] for each in URGENT),
            "worrying": sum(counts.health[each] for each in WORRYING),
            "map": sites,
            "newest": await self._read_newest() if viewer.whole else [],
            "explain": summarise_question,
            "rows": [self._describe(row.device) for row in picked[cut.start : cut.stop]],
            "cut": cut,
            "query": {key: request.query.get(key, "")[:MAX_SEARCH] for key in ("q", "site", "health", "sort")},
            "sorts": _SORTS,
            "healths": [each for each in DeviceHealth if counts.health[each]],
        }
        return PageContent("fleet.html", values, "Fleet", topic="fleet")

    async def _read_newest(self) -> list[QuestionRecord]:
        """Return the newest questions of all devices, read once a second at most; as read before if that fails."""
        if time.monotonic() - self._read_s >= LEAST_S:
            self._read_s = time.monotonic()
            with contextlib.suppress(SQLAlchemyError):
                self._newest = await self._context.store.read_newest(NEWEST)
        return self._newest

    async def find(self, request: web.Request, viewer: Viewer) -> PageContent:
        """Redirect to the device at a place of the map (`?site=eu&n=3`), or to the fleet if there is none."""
        site, text = request.query.get("site", ""), request.query.get("n", "")
        rows = [row.device for row in self._index.rows_for(viewer) if row.site == site]
        place = int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else len(rows)
        raise web.HTTPSeeOther(f"/devices/{rows[place]}" if place < len(rows) else "/")

    def _describe(self, device_id: str) -> dict[str, Any]:
        device = self._context.registry.device(device_id)
        assert device is not None  # a device is never forgotten
        return describe_device(self._context, device)


def _pick_rows(rows: tuple[FleetRow, ...], request: web.Request) -> list[FleetRow]:
    """Return the rows that the query names, in the order that it wants."""
    text = request.query.get("q", "")[:MAX_SEARCH].strip().lower()
    site, health = request.query.get("site", ""), request.query.get("health", "")
    found = [
        row
        for row in rows
        if (not text or text in row.device or any(text in model for model in row.models))
        and (not site or row.site == site)
        and (not health or row.health == health)
    ]
    sort = read_choice(request, "sort", _SORTS)
    if sort == "health":
        found.sort(key=lambda row: _ORDER[row.health])
    elif sort == "seen":
        found.sort(key=lambda row: -row.last_seen_ms)
    elif sort == "site":
        found.sort(key=lambda row: row.site)
    return found


class MapSite(NamedTuple):
    """One site of the map: a letter of health for each device, in the order of their ids.

    `online`: how many are; `names`: their ids, left out of a large fleet.
    """

    site: str
    devices: int
    letters: str
    online: int
    names: tuple[str, ...]


_LETTERS = {
    **dict.fromkeys(DeviceHealth, "x"),
    **dict.fromkeys(URGENT, "u"),
    **dict.fromkeys(WORRYING, "w"),
    DeviceHealth.ONLINE: "o",
    DeviceHealth.UNHEARD: "n",
    DeviceHealth.RETIRING: "n",
}


def _draw_map(rows: tuple[FleetRow, ...]) -> list[MapSite]:
    """Return the sites with a letter for each device: the page draws a square for it."""
    sites: dict[str, list[FleetRow]] = {}
    for row in rows:
        sites.setdefault(row.site, []).append(row)
    named = len(rows) <= MAX_NAMED
    return [_draw_site(site, found, named=named) for site, found in sorted(sites.items())]


def _draw_site(site: str, rows: list[FleetRow], *, named: bool) -> MapSite:
    letters = "".join(_LETTERS[row.health] for row in rows)
    names = tuple(row.device for row in rows) if named else ()
    return MapSite(site, len(rows), letters, letters.count("o"), names)

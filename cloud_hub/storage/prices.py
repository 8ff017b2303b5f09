"""Prices of what was used, and the bill that they make of the sums. Pure.

Rule: prices are the owner's, in the owner's currency, and are put on sums when they are read: a new price holds for the
whole time that is shown.
"""

from collections.abc import Iterable, Mapping

import msgspec

from cloud_hub.storage.costs import US_PER_S, CostEntry, CostKind

GIB = 1 << 30
MILLION = 1_000_000
JOULES_PER_KWH = 3_600_000


class UnitPrices(msgspec.Struct, frozen=True):
    """Prices of a request, an engine's second, a GiB of requests, a kWh of cards, a million tokens of each kind."""

    request: float = 0.0
    engine_s: float = 0.0
    gib: float = 0.0
    kwh: float = 0.0
    tokens_in: float = 0.0
    tokens_cached: float = 0.0
    tokens_out: float = 0.0

    def price_of(self, kind: CostKind, amount: int) -> float:
        """Return the price of an amount."""
        unit_prices = {
            CostKind.REQUESTS: self.request,
            CostKind.ENGINE_US: self.engine_s / US_PER_S,
            CostKind.BYTES: self.gib / GIB,
            CostKind.JOULES: self.kwh / JOULES_PER_KWH,
            CostKind.TOKENS_IN: self.tokens_in / MILLION,
            CostKind.TOKENS_CACHED: self.tokens_cached / MILLION,
            CostKind.TOKENS_OUT: self.tokens_out / MILLION,
            CostKind.TOKENS_ESTIMATED: 0.0,  # priced as what they are, in, cached and out
        }
        return unit_prices[kind] * amount


class PriceList(msgspec.Struct, frozen=True):
    """All prices of a hub: `default`, and those of the language models by name."""

    currency: str = ""
    default: UnitPrices = UnitPrices()
    models: Mapping[str, UnitPrices] = {}

    def prices_for(self, model: str) -> UnitPrices:
        """Return the prices of a model."""
        return self.models.get(model, self.default)


class BillLine(msgspec.Struct, frozen=True):
    """One day of a tenant with a model in a region: amounts by kind, and their price."""

    day: int
    tenant: str
    model: str
    region: str
    amounts: dict[str, int]
    price: float


def write_bill(entries: Iterable[CostEntry], prices: PriceList) -> list[BillLine]:
    """Return the lines of a bill, by day, tenant, model and region."""
    lines: dict[tuple[int, str, str, str], dict[str, int]] = {}
    for each in sorted(entries):
        lines.setdefault((each.day, each.tenant, each.model, each.region), {})[each.kind] = each.amount
    found = []
    for key, amounts in lines.items():
        unit = prices.prices_for(key[2])
        price = sum(unit.price_of(CostKind(kind), amount) for kind, amount in amounts.items())
        found.append(BillLine(*key, amounts, round(price, 6)))
    return found

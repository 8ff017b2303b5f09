"""A hub: jobs, batches, devices, models, rollouts and costs.

Inference and language models it has under the interfaces of others: use `tritonclient` and `openai` for them.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from skerry_client.addresses import find_hub
from skerry_client.errors import ServiceUnavailableError
from skerry_client.exchange.commands import Request, Steps, build_path, fetch_object, send
from skerry_client.exchange.operations import AsyncCalls, BlockingCalls, operation
from skerry_client.exchange.transports import AsyncTransport, BlockingTransport
from skerry_client.fleet import AsyncDevices, AsyncModels, Devices, Models
from skerry_client.jobs import AsyncBatches, AsyncJobs, Batches, Jobs
from skerry_client.reading import read_value
from skerry_client.rollouts import AsyncRollouts, Rollouts

TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CostLine:
    """What a tenant used of a model in a region on one day (UTC).

    `amounts`: by kind; `price` None: no currency is set.
    """

    day: str
    tenant: str
    model: str
    region: str
    amounts: dict[str, int]
    price: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """What was used, and what it costs. `total` None: no currency is set."""

    currency: str
    total: float | None
    costs: tuple[CostLine, ...]


class HubOperations:
    """What a hub is asked of itself."""

    @operation
    def costs(self, *, days: int = 31) -> Steps[Bill]:
        """Return what was used today and on the days before, by day, tenant, model and region, and its price."""
        request = Request("GET", build_path("v1", "costs", days=days), safe=True)
        return read_value(Bill, (yield from fetch_object(request)), request.where)

    @operation
    def status(self) -> Steps[dict[str, Any]]:
        """Return the hub's status, as `skerry hub status --json` prints it."""
        return (yield from fetch_object(Request("GET", "/v1/admin/status", safe=True)))

    @operation
    def ready(self) -> Steps[bool]:
        """Return whether the hub takes work now."""
        try:
            yield from send(Request("GET", "/readyz", safe=True))
        except ServiceUnavailableError:
            return False
        return True


class Hub(HubOperations, BlockingCalls):
    """A hub; each call blocks until its reply is there.

    `where`: its URL; left out: what `SKERRY_HUB` says (its key then is in the file that `SKERRY_KEY` names), else
    http://127.0.0.1:8080. `token` or `token_file`: a key (`skerry hub key create`) or the admin token (`admin.token` in
    its state folder). `ca_file`: PEM of the CA of its certificate. SkerryError if `where` is no address.
    """

    def __init__(
        self,
        where: str | None = None,
        *,
        token: str = "",
        token_file: str | Path = "",
        ca_file: str | Path = "",
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        super().__init__(BlockingTransport(find_hub(where, token, token_file, ca_file), timeout_s))
        self.jobs = Jobs(self._transport)
        self.batches = Batches(self._transport)
        self.devices = Devices(self._transport)
        self.models = Models(self._transport)
        self.rollouts = Rollouts(self._transport)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()


class AsyncHub(HubOperations, AsyncCalls):
    """A hub, on asyncio: the calls of `Hub` as coroutines, its iterators as asynchronous ones."""

    def __init__(
        self,
        where: str | None = None,
        *,
        token: str = "",
        token_file: str | Path = "",
        ca_file: str | Path = "",
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        super().__init__(AsyncTransport(find_hub(where, token, token_file, ca_file), timeout_s))
        self.jobs = AsyncJobs(self._transport)
        self.batches = AsyncBatches(self._transport)
        self.devices = AsyncDevices(self._transport)
        self.models = AsyncModels(self._transport)
        self.rollouts = AsyncRollouts(self._transport)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()

"""`/v1/ledger/...`: the log of the devices' ledger heads, for whoever wants to check that it only grows.

Rule: checkpoints and proofs hold hashes alone and are open to all; which device said what needs a key.
"""

from aiohttp import web

from cloud_hub.api.auth import caller_of
from cloud_hub.api.merging_routing_bodies import answer
from cloud_hub.api.merging_routing_routes import Door, Route
from cloud_hub.registry.access import Scope
from cloud_hub.storage.merging_ledger_service_ledger_clerk import LedgerLogService
from cloud_hub.storage.merging_ledger_service_ledger_export import text_of
from wire.http.merging_oip_oip import OipError
from wire.protocol.topics import tenant_of

_MAX_DIGITS = 18


class Ledger:
    """`clerk` None: this hub keeps no log, and every route is 404."""

    def __init__(self, clerk: LedgerLogService | None) -> None:
        self._clerk = clerk

    def routes(self) -> list[Route]:
        grown = "Proof that the log only grew from `first` to `second` heads (RFC 9162, 2.1.4)"
        held = "Proof that a leaf is in the log when it had `size` heads (RFC 9162, 2.1.3)"
        said = "The heads that a device has signed, as they stand in the log"
        return [
            Route(
                "GET", "/v1/ledger/checkpoint", self.checkpoint, "The log's size and root, signed (C2SP)",
                Door.OPEN, plain="text/plain",
            ),
            Route("GET", "/v1/ledger/consistency", self.consistency, grown, Door.OPEN),
            Route("GET", "/v1/ledger/inclusion", self.inclusion, held, Door.OPEN),
            Route("GET", "/v1/admin/ledger/{device}", self.heads, said, Door.KEY, scope=Scope.READ),
        ]  # fmt: skip

    async def checkpoint(self, _request: web.Request) -> web.Response:
        return web.Response(text=await self._kept.checkpoint(), headers={"Cache-Control": "no-store"})

    async def consistency(self, request: web.Request) -> web.Response:
        first, second = _number(request, "first"), _number(request, "second")
        try:
            proof = await self._kept.ask(lambda log: log.consistency(first, second))
        except ValueError as error:
            raise OipError(400, str(error)) from None
        return answer({"first": first, "second": second, "proof": [text_of(each) for each in proof]})

    async def inclusion(self, request: web.Request) -> web.Response:
        index, size = _number(request, "index"), _number(request, "size")
        try:
            proof = await self._kept.ask(lambda log: log.inclusion(index, size))
        except ValueError as error:
            raise OipError(400, str(error)) from None
        return answer({"index": index, "size": size, "proof": [text_of(each) for each in proof]})

    async def heads(self, request: web.Request) -> web.Response:
        """Behind the index `after`, each with its path to one signed checkpoint."""
        device, after = request.match_info["device"], _number(request, "after", -1)
        if not caller_of(request).sees(tenant_of(device)):
            raise OipError(404, "no such device")
        return answer(await self._kept.export(device, after))

    @property
    def _kept(self) -> LedgerLogService:
        if self._clerk is None:
            raise OipError(404, "this hub keeps no log")
        return self._clerk


def _number(request: web.Request, key: str, otherwise: int | None = None) -> int:
    text = request.query.get(key, "")
    if not text and otherwise is not None:
        return otherwise
    if not text.isascii() or not text.isdecimal() or len(text) > _MAX_DIGITS:
        raise OipError(400, f"{key}: a whole number is needed")
    return int(text)

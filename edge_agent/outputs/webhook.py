"""Output to a webhook: each record, or a batch of them, as one HTTP POST.

Rule: it follows no redirect and uses no proxy of the environment, so records go to the address named and nowhere else.
Signatures are those of Standard Webhooks (github.com/standard-webhooks, version 1): `webhook-id`, `webhook-timestamp`,
and in `webhook-signature` the HMAC-SHA256 of both and the body.
"""

import asyncio
import base64
import hashlib
import hmac
import time
from collections.abc import Mapping, Sequence
from http import HTTPStatus

import aiohttp

from edge_agent.outputs.delivery import DeliveryError, OutputMessage
from edge_agent.outputs.settings import OutputSection
from edge_agent.system.site_broker import make_client_context, read_secret
from wire.process.exit_codes import ExitError
from wire.process.time_limits import describe_failure

_BUSY = frozenset((HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS))
_NOT_SET_UP = frozenset((HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND))
_MAX_RETRY_AFTER_S = 300.0


class WebhookOutput:
    """Posts records to `url`: one object, or a list of them where `batch` is above 1.

    2xx: taken. 401, 403, 404 and no answer: waited for, as nothing is wrong with the record. 408, 425, 429 and 5xx:
    tried `attempts` times. Any other status: refused for good.
    """

    def __init__(self, section: OutputSection) -> None:
        self.trouble = ""
        self._section = section
        self._session: aiohttp.ClientSession | None = None

    async def run(self) -> None:
        """Keep one session, whose connection is used again, until cancelled."""
        try:
            await asyncio.Event().wait()
        finally:
            if self._session is not None:
                await self._session.close()

    async def send(self, batch: Sequence[OutputMessage]) -> Mapping[str, int]:
        """Post a batch. DeliveryError if nobody took it."""
        try:
            status, retry_after_s = await self._post(batch)
        except (aiohttp.ClientError, TimeoutError, OSError, ExitError) as error:
            raise DeliveryError(describe_failure(error, "POST", self._section.timeout_s)) from None
        if HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
            return {}
        if status in _NOT_SET_UP:
            raise DeliveryError(f"status {status}", retry_after_s=retry_after_s)
        if status in _BUSY or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            raise DeliveryError(f"status {status}", counted=True, retry_after_s=retry_after_s)
        return {"refused": len(batch)}

    async def _post(self, batch: Sequence[OutputMessage]) -> tuple[int, float]:
        """Status of the reply, and the seconds it asks to wait."""
        body = batch[0].body if self._section.batch == 1 else b"[%b]" % b",".join(each.body for each in batch)
        first, last = batch[0].record, batch[-1].record
        headers = {"Content-Type": "application/json", "webhook-id": f"{first.id}-{first.event}-{last.event}"}
        headers |= self._sign(headers["webhook-id"], body)
        session = self._open_session()
        async with session.post(self._section.url, data=body, headers=headers, allow_redirects=False) as reply:
            return reply.status, _read_retry_after(reply.headers.get("Retry-After", ""))

    def _sign(self, message_id: str, body: bytes) -> dict[str, str]:
        """The headers that prove who posts."""
        headers: dict[str, str] = {}
        if self._section.token_file:
            headers["Authorization"] = f"Bearer {read_secret(self._section.token_file).decode('latin-1')}"
        at = str(int(time.time()))
        headers["webhook-timestamp"] = at
        if self._section.secret_file:
            signed = b"%b.%b.%b" % (message_id.encode(), at.encode(), body)
            digest = hmac.digest(decode_secret(read_secret(self._section.secret_file)), signed, hashlib.sha256)
            headers["webhook-signature"] = f"v1,{base64.b64encode(digest).decode()}"
        return headers

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            tls = make_client_context(self._section.tls_ca) if self._section.web_address.tls else False
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=tls, limit=1),
                timeout=aiohttp.ClientTimeout(total=self._section.timeout_s),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session


def decode_secret(text: bytes) -> bytes:
    """The key of a secret: base64 after `whsec_`, as Standard Webhooks writes it; any other text as it is."""
    if text.startswith(b"whsec_"):
        try:
            return base64.b64decode(text.removeprefix(b"whsec_"), validate=True)
        except ValueError:
            return text
    return text


def _read_retry_after(text: str) -> float:
    """Seconds of a `Retry-After` header, at most five minutes; 0 where it has none, or a date."""
    return min(float(text), _MAX_RETRY_AFTER_S) if text.isascii() and text.isdigit() else 0.0

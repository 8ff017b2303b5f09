"""Downloader for TUF metadata and targets over HTTP, with resumable downloads (range requests).

Rule: never more bytes than the metadata promised plus one, never longer than the deadline, and what has arrived is
asked for again only if it cannot be trusted to belong to the rest.
"""

import http.client
import re
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

from tuf.api.exceptions import DownloadError, DownloadHTTPError, DownloadLengthMismatchError, SlowRetrievalError
from tuf.ngclient.fetcher import FetcherInterface

from models.update.partial_download import PartialDownload
from wire.http.client import HttpChannel, SlowTransferError, TransferLimits, TransferPace
from wire.process.proxy import NO_PROXY, ForwardProxy
from wire.process.time_limits import describe_failure

CHUNK_BYTES = 1 << 16
MAX_CONNECTIONS = 64
MAX_EMPTY_TRIES = 4  # connections in a row that bring no byte
RETRY_PAUSE_S = 0.25  # doubled for each of them
METADATA_LIMITS = TransferLimits(deadline_s=60.0, least_bytes_per_s=0.0)
_CONTENT_RANGE = re.compile(r"bytes (\d{1,15})-\d{1,15}/(\d{1,15}|\*)")


class UnreachableError(DownloadError):
    """Server that did not answer, or a connection that broke; trying again may help."""


class TransferClock(NamedTuple):
    """Clock and sleep of the downloader, passed in so that a test need not wait."""

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


class ResumingFetcher(FetcherInterface):
    """TUF fetcher with resume.

    Use from one thread. `targets`: limits of a target's download; `context`: TLS of an own CA; `token`: bearer token
    that is sent with downloads of targets ("" = none), never with metadata and never to another host.
    `proxy`: on the way to every host but this machine.
    """

    def __init__(
        self,
        targets: TransferLimits | None = None,
        context: ssl.SSLContext | None = None,
        hands: TransferClock | None = None,
        token: str = "",
        proxy: ForwardProxy = NO_PROXY,
    ) -> None:
        self._limits = targets or TransferLimits()
        self._channel = HttpChannel((lambda: context) if context else ssl.create_default_context, proxy)
        self._hands = hands or TransferClock()
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.received_bytes = 0

    @property
    def requests(self) -> int:
        """Number of HTTP requests sent."""
        return self._channel.requests

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def download_bytes(self, url: str, max_length: int) -> bytes:
        """Download a whole metadata file. Cut at `max_length` + 1; asked for once more if the connection breaks."""
        pace = TransferPace(METADATA_LIMITS, self._hands.clock)
        try:
            return self._download_whole(url, max_length, pace)
        except UnreachableError:
            self._channel.close()
            return self._download_whole(url, max_length, pace)

    def download_part(self, url: str, part: PartialDownload, length: int) -> None:
        """Fill `part` up to exactly `length` bytes, beginning after what it holds.

        DownloadLengthMismatchError if the server has more or less than that: nothing of it is kept. UnreachableError,
        DownloadHTTPError or SlowRetrievalError: what came is kept for the next time. OSError: the disk.
        """
        pace = TransferPace(self._limits, self._hands.clock)
        if part.size > length:
            part.restart()
        try:
            self._fill_part(url, part, length, pace)
        except DownloadLengthMismatchError:
            part.discard()
            raise
        finally:
            self._channel.close()

    def _fetch(self, url: str) -> Iterator[bytes]:
        """Iterate over a body for the TUF client, which uses it only for what `download_bytes` does not serve."""
        return self._iter_chunks(self._get(url, {}, TransferPace(self._limits, self._hands.clock)))

    def _get(self, url: str, headers: Mapping[str, str], pace: TransferPace) -> http.client.HTTPResponse:
        """Send a GET request that is redirected on the same host at most; return the response, its body unread.

        DownloadHTTPError for any status but 200 and 206; else DownloadError.
        """
        try:
            response = self._channel.get(url, headers, pace)
            if response.status not in (http.HTTPStatus.OK, http.HTTPStatus.PARTIAL_CONTENT):
                self._channel.discard(response)
                raise DownloadHTTPError(f"HTTP status {response.status}", response.status)
        except SlowTransferError as error:
            raise SlowRetrievalError(str(error)) from None
        except (OSError, http.client.HTTPException) as error:
            where = urlsplit(url)
            reason = describe_failure(error, f"GET {where.path}", self._limits.gap_s)
            raise UnreachableError(f"{where.hostname}: {reason}") from error
        except ValueError as error:
            raise DownloadError(str(error)) from None
        return response

    def _download_whole(self, url: str, max_length: int, pace: TransferPace) -> bytes:
        response = self._get(url, {}, pace)
        try:
            data = self._read_body(response, max_length)
        except DownloadError:
            self._channel.close()
            raise
        finally:
            response.close()  # where the whole was read, the connection is free for the next
        return data

    def _read_body(self, response: http.client.HTTPResponse, max_length: int) -> bytes:
        if (response.length or 0) > max_length:
            raise DownloadLengthMismatchError(f"{response.length} bytes announced, at most {max_length}")
        data = bytearray()
        for piece in self._iter_chunks(response, max_length + 1):
            data += piece
        if len(data) > max_length:
            raise DownloadLengthMismatchError(f"more than {max_length} bytes")
        if response.length:
            raise UnreachableError(f"cut, {response.length} bytes missing")
        return bytes(data)

    def _fill_part(self, url: str, part: PartialDownload, length: int, pace: TransferPace) -> None:
        barren = 0
        for _ in range(MAX_CONNECTIONS):
            if part.size == length:
                return
            before = part.size
            try:
                self._continue_part(url, part, length, pace)
            except UnreachableError:
                if barren >= MAX_EMPTY_TRIES:
                    raise
            except DownloadHTTPError as error:
                if error.status_code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE or before == 0:
                    raise
                part.restart()
            barren = barren + 1 if part.size <= before else 0
            if barren > MAX_EMPTY_TRIES:
                break
            if barren:
                self._hands.sleep(min(RETRY_PAUSE_S * 2**barren, pace.read_timeout_s()))
        if part.size < length:
            raise UnreachableError(f"cut too often, {length - part.size} bytes missing")

    def _continue_part(self, url: str, part: PartialDownload, length: int, pace: TransferPace) -> None:
        """Continue the part with one request."""
        response = self._get(url, {**_range_headers(part), **self._headers}, pace)
        try:
            total = _check_range(response, part)
            if total is not None and total != length:
                raise DownloadLengthMismatchError(f"{total} bytes announced, {length} promised")
            part.tag = response.headers.get("ETag", "")
            part.resumed = part.size > 0
            for piece in self._iter_chunks(response, length - part.size + 1):
                part.append(piece)
        finally:
            response.close()
            self._channel.close()
            part.flush()
        if part.size > length:
            raise DownloadLengthMismatchError(f"more than the {length} bytes promised")

    def _iter_chunks(self, response: http.client.HTTPResponse, at_most: int | None = None) -> Iterator[bytes]:
        """Iterate over the body as it arrives, at most so many bytes. UnreachableError if the connection breaks."""
        left = at_most
        while left is None or left > 0:
            try:
                piece = response.read1(CHUNK_BYTES if left is None else min(CHUNK_BYTES, left))
            except SlowTransferError as error:
                self._channel.close()
                raise SlowRetrievalError(str(error)) from None
            except (OSError, http.client.HTTPException, ValueError) as error:
                self._channel.close()
                raise UnreachableError(f"cut: {describe_failure(error, 'the body', self._limits.gap_s)}") from error
            if not piece:
                return
            self.received_bytes += len(piece)
            left = None if left is None else left - len(piece)
            yield piece


def _range_headers(part: PartialDownload) -> dict[str, str]:
    """Build the range headers that continue a part (RFC 9110, 14.2 and 13.1.5)."""
    if part.size == 0:
        return {}
    strong = part.tag and not part.tag.startswith("W/")  # RFC 9110 13.1.5: a weak one cannot vouch for bytes
    return {"Range": f"bytes={part.size}-", **({"If-Range": part.tag} if strong else {})}


def _check_range(response: http.client.HTTPResponse, part: PartialDownload) -> int | None:
    """Return the length of the whole file by this answer; None if it does not say. Restarts the part where it must."""
    if response.status == http.HTTPStatus.OK:
        part.restart()  # no ranges here, or another file than before
        return response.length
    found = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
    tag = response.headers.get("ETag", "")
    if not found or int(found[1]) != part.size or (part.tag and tag and tag != part.tag):
        part.restart()
        raise UnreachableError("the answer does not continue the download where it stopped")
    return None if found[2] == "*" else int(found[2])


__all__ = ["DownloadError", "ResumingFetcher", "TransferClock", "TransferLimits", "UnreachableError"]

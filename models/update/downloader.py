"""Downloader for TUF metadata and targets over HTTP, with resumable downloads (range requests).

Rule: never more bytes than the metadata promised plus one, never longer than the deadline, and what has arrived is
asked for again only if it cannot be trusted to belong to the rest.
"""

import http.client
import re
import ssl
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tuf.api.exceptions import DownloadError, DownloadHTTPError, DownloadLengthMismatchError
from tuf.ngclient.fetcher import FetcherInterface

from models.update.http import METADATA, Channel, Limits, Pace, UnreachableError
from models.update.partial_download import Part

CHUNK_BYTES = 1 << 16
MAX_CONNECTIONS = 64
BARREN_TRIES = 4  # connections in a row that bring no byte
PAUSE_S = 0.25  # doubled for each of them
_RANGE = re.compile(r"bytes (\d{1,15})-\d{1,15}/(\d{1,15}|\*)")


class Hands(NamedTuple):
    """Clock and sleep of the downloader, passed in so that a test need not wait."""

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


class Fetcher(FetcherInterface):
    """TUF fetcher with resume.

    Use from one thread. `targets`: limits of a target's download; `context`: TLS of an own CA.
    """

    def __init__(
        self, targets: Limits | None = None, context: ssl.SSLContext | None = None, hands: Hands | None = None
    ) -> None:
        self._limits = targets or Limits()
        self._channel = Channel(context)
        self._hands = hands or Hands()
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
        pace = Pace(METADATA, self._hands.clock)
        try:
            return self._whole(url, max_length, pace)
        except UnreachableError:
            self._channel.close()
            return self._whole(url, max_length, pace)

    def download_part(self, url: str, part: Part, length: int) -> None:
        """Fill `part` up to exactly `length` bytes, beginning after what it holds.

        DownloadLengthMismatchError if the server has more or less than that: nothing of it is kept. UnreachableError,
        DownloadHTTPError or SlowRetrievalError: what came is kept for the next time. OSError: the disk.
        """
        pace = Pace(self._limits, self._hands.clock)
        if part.size > length:
            part.restart()
        try:
            self._fill(url, part, length, pace)
        except DownloadLengthMismatchError:
            part.discard()
            raise
        finally:
            self._channel.close()

    def _fetch(self, url: str) -> Iterator[bytes]:
        """Iterate over a body for the TUF client, which uses it only for what `download_bytes` does not serve."""
        return self._pieces(self._channel.get(url, {}, Pace(self._limits, self._hands.clock)))

    def _whole(self, url: str, max_length: int, pace: Pace) -> bytes:
        response = self._channel.get(url, {}, pace)
        try:
            data = self._read(response, max_length)
        except DownloadError:
            self._channel.close()
            raise
        finally:
            response.close()  # where the whole was read, the connection is free for the next
        return data

    def _read(self, response: http.client.HTTPResponse, max_length: int) -> bytes:
        if (response.length or 0) > max_length:
            raise DownloadLengthMismatchError(f"{response.length} bytes announced, at most {max_length}")
        data = bytearray()
        for piece in self._pieces(response, max_length + 1):
            data += piece
        if len(data) > max_length:
            raise DownloadLengthMismatchError(f"more than {max_length} bytes")
        if response.length:
            raise UnreachableError(f"cut, {response.length} bytes missing")
        return bytes(data)

    def _fill(self, url: str, part: Part, length: int, pace: Pace) -> None:
        barren = 0
        for _ in range(MAX_CONNECTIONS):
            if part.size == length:
                return
            before = part.size
            try:
                self._continue(url, part, length, pace)
            except UnreachableError:
                if barren >= BARREN_TRIES:
                    raise
            except DownloadHTTPError as error:
                if error.status_code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE or before == 0:
                    raise
                part.restart()
            barren = barren + 1 if part.size <= before else 0
            if barren > BARREN_TRIES:
                break
            if barren:
                self._hands.sleep(min(PAUSE_S * 2**barren, pace.patience_s()))
        if part.size < length:
            raise UnreachableError(f"cut too often, {length - part.size} bytes missing")

    def _continue(self, url: str, part: Part, length: int, pace: Pace) -> None:
        """Continue the part with one request."""
        response = self._channel.get(url, _asking(part), pace)
        try:
            total = _total(response, part)
            if total is not None and total != length:
                raise DownloadLengthMismatchError(f"{total} bytes announced, {length} promised")
            part.tag = response.headers.get("ETag", "")
            part.resumed = part.size > 0
            for piece in self._pieces(response, length - part.size + 1):
                part.append(piece)
        finally:
            response.close()
            self._channel.close()
            part.flush()
        if part.size > length:
            raise DownloadLengthMismatchError(f"more than the {length} bytes promised")

    def _pieces(self, response: http.client.HTTPResponse, at_most: int | None = None) -> Iterator[bytes]:
        """Iterate over the body as it arrives, at most so many bytes. UnreachableError if the connection breaks."""
        left = at_most
        while left is None or left > 0:
            try:
                piece = response.read1(CHUNK_BYTES if left is None else min(CHUNK_BYTES, left))
            except (OSError, http.client.HTTPException, ValueError) as error:
                self._channel.close()
                raise UnreachableError(f"cut: {type(error).__name__}") from error
            if not piece:
                return
            self.received_bytes += len(piece)
            left = None if left is None else left - len(piece)
            yield piece


def _asking(part: Part) -> dict[str, str]:
    """Build the range headers that continue a part (RFC 9110, 14.2 and 13.1.5)."""
    if part.size == 0:
        return {}
    strong = part.tag and not part.tag.startswith("W/")  # RFC 9110 13.1.5: a weak one cannot vouch for bytes
    return {"Range": f"bytes={part.size}-", **({"If-Range": part.tag} if strong else {})}


def _total(response: http.client.HTTPResponse, part: Part) -> int | None:
    """Return the length of the whole file by this answer; None if it does not say. Restarts the part where it must."""
    if response.status == http.HTTPStatus.OK:
        part.restart()  # no ranges here, or another file than before
        return response.length
    found = _RANGE.fullmatch(response.headers.get("Content-Range", ""))
    tag = response.headers.get("ETag", "")
    if not found or int(found[1]) != part.size or (part.tag and tag and tag != part.tag):
        part.restart()
        raise UnreachableError("the answer does not continue the download where it stopped")
    return None if found[2] == "*" else int(found[2])


__all__ = ["DownloadError", "Fetcher", "Hands", "Limits", "UnreachableError"]

"""Blocking client of a running hub's admin API, used by the `skerry hub` commands.

Rule: the token is sent only to the address that the hub itself wrote into its state folder.
"""

import ssl
from pathlib import Path
from typing import Any

import msgspec

from wire.http.client import HttpClient
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.files import write_private_file

MAX_REPLY_BYTES = 16 << 20
_CODES = {
    400: ExitCode.USAGE,
    401: ExitCode.CREDENTIALS,
    403: ExitCode.CREDENTIALS,
    404: ExitCode.NOT_FOUND,
    409: ExitCode.CHECK_FAILED,
}


class ApiAddress(msgspec.Struct, frozen=True):
    """Address of a running hub: http://..., https://... or unix:PATH.

    `ca`: PEM file that its TLS certificate is checked with.
    """

    url: str
    token_file: str
    ca: str = ""

    def save(self, path: Path) -> None:
        """Write the address to `path` (mode 0600)."""
        write_private_file(path, msgspec.json.encode(self))

    def make_tls_context(self) -> ssl.SSLContext:
        """TLS context with this machine's CAs and the hub's own."""
        context = ssl.create_default_context()
        if self.ca:
            context.load_verify_locations(self.ca)
        return context


def read_running_address(path: Path) -> ApiAddress | None:
    """Read the address that a hub wrote at its start; None if there is none. ExitError(HUB) if it is damaged."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=ApiAddress)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, msgspec.DecodeError, RecursionError) as error:
        raise ExitError(ExitCode.HUB, f"{path}: {error}; remove it if no hub runs") from None


def call_hub_api(address: ApiAddress, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """Send a request and return the JSON object of the reply.

    ExitError with the hub's own error line if it refuses, ExitError(HUB) if it cannot be reached.
    """
    client = HttpClient(
        url=address.url,
        server="hub",
        token_file=address.token_file,
        tls=address.make_tls_context,
        max_reply_bytes=MAX_REPLY_BYTES,
    )
    return client.call(method, path, msgspec.json.encode(body) if body is not None else None, codes=_CODES)

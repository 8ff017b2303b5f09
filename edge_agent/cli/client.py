"""Client of a running agent's local API, for the commands. Small and blocking.

Rule: the API token is sent only to the address that the state folder or the caller names.
"""

import ssl
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from edge_agent.system.settings import ADDRESS_FILE, ApiAddress
from wire.http.client import HttpClient
from wire.process.exit_codes import ExitCode, ExitError

_CODES = {404: ExitCode.NOT_FOUND, 409: ExitCode.CONFIG, 401: ExitCode.CREDENTIALS, 403: ExitCode.CREDENTIALS}


def find_running_agent(state: Path) -> ApiAddress | None:
    """The address of the agent that owns a state folder; None if none runs.

    Raises ExitError(CONFIG) if the address file is unreadable.
    """
    try:
        return msgspec.json.decode((state / ADDRESS_FILE).read_bytes(), type=ApiAddress)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, msgspec.DecodeError, RecursionError) as error:
        raise ExitError(ExitCode.CONFIG, f"{state / ADDRESS_FILE}: {error}") from None


def request_json(address: ApiAddress, path: str, method: str = "GET") -> dict[str, Any]:
    """The JSON object at `path` of the agent's API.

    Raises ExitError(NOT_FOUND) for 404, ExitError(CONFIG) for 409, ExitError(CREDENTIALS) for 401 and 403, and
    ExitError(HUB) for any other status or if nobody answers.
    """
    trust = partial(_trust_certificate, address.tls_cert)
    client = HttpClient(url=address.url, server="agent", token_file=address.token_file, tls=trust)
    return client.call(method, path, codes=_CODES, prefix=f"the agent at {address.url} answers: ")


def _trust_certificate(certificate_file: str) -> ssl.SSLContext:
    """A TLS context that trusts exactly the server's own certificate, whatever name it bears.

    Without a certificate file it trusts the CAs of this machine.
    """
    if not certificate_file:
        return ssl.create_default_context()
    first = Path(certificate_file).read_text(encoding="ascii").split("-----END CERTIFICATE-----")[0]
    context = ssl.create_default_context(cadata=f"{first}-----END CERTIFICATE-----\n")
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context

"""Where a server is and how a client proves who it is: a URL, a Unix socket, or the state folder of a local agent."""

import json
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from skerry_client.errors import SkerryError

ADDRESS_FILE = "api.json"  # of an agent that runs, in its state folder
_UNIX = "unix:"


@dataclass(frozen=True)
class Address:
    """Address of a server. `base`: its URL; `unix`: path of its socket, "" = TCP. `server`: "agent" or "hub".

    `ca_file`: PEM of the CA that signed its certificate; `certificate_file`: its own certificate, trusted whatever name
    it bears. "" for neither: the CAs of this machine.
    """

    base: str
    server: str
    unix: str = ""
    token: str = ""
    ca_file: str = ""
    certificate_file: str = ""

    @property
    def shown(self) -> str:
        """The address as a person writes it."""
        return _UNIX + self.unix if self.unix else self.base

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers of every request."""
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    def tls_context(self) -> ssl.SSLContext | bool:
        """Return what the server's certificate is checked against. SkerryError if a file cannot be read."""
        try:
            if self.certificate_file:
                return _trust_certificate(Path(self.certificate_file))
            return ssl.create_default_context(cafile=self.ca_file) if self.ca_file else True
        except (OSError, ssl.SSLError) as error:
            raise SkerryError(f"{self.certificate_file or self.ca_file}: {error}") from None


def default_agent() -> str:
    """Return where the agent is if nobody says it: `SKERRY_AGENT`, else the port that an agent has as it is shipped."""
    return os.environ.get("SKERRY_AGENT") or "http://127.0.0.1:8090"


def default_hub() -> str:
    """Return where the hub is if nobody says it: `SKERRY_HUB`, else the port that a hub has as it is shipped."""
    return os.environ.get("SKERRY_HUB") or "http://127.0.0.1:8080"


def find_agent(
    where: str | Path | None, token: str = "", token_file: str | Path = "", ca_file: str | Path = ""
) -> Address:
    """Return the address of an agent: a URL, `unix:PATH`, or its state folder, which names all by itself.

    None: the default. SkerryError if the folder's agent does not run, a file cannot be read, or `where` is no address:
    an empty one is none, as it is mostly a variable that was not set.
    """
    where = default_agent() if where is None else where
    text = str(where)
    if not text:
        raise _no_address(text, "agent")
    if text.startswith((_UNIX, "http://", "https://")):
        return parse_address(text, "agent", token, token_file, ca_file)
    try:
        found = json.loads((Path(where) / ADDRESS_FILE).read_bytes())
        url, own_token_file, certificate = (str(found.get(key, "")) for key in ("url", "token_file", "tls_cert"))
    except FileNotFoundError:
        raise SkerryError(f"{text}: no agent runs with this state folder; `skerry agent run --dir {text}`") from None
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise SkerryError(f"{Path(where) / ADDRESS_FILE}: {error}") from None
    address = parse_address(url, "agent", token, token_file or own_token_file, ca_file)
    trusted = "" if address.ca_file else certificate
    return Address(address.base, "agent", address.unix, address.token, address.ca_file, trusted)


def find_hub(where: str | None, token: str = "", token_file: str | Path = "", ca_file: str | Path = "") -> Address:
    """Return the address of a hub: a URL; None: the default, with the key in the file that `SKERRY_KEY` names.

    SkerryError if a file cannot be read, or `where` is no address.
    """
    key_file = token_file or ("" if token or where is not None else os.environ.get("SKERRY_KEY", ""))
    return parse_address(default_hub() if where is None else where, "hub", token, key_file, ca_file)


def parse_address(
    url: str, server: str, token: str = "", token_file: str | Path = "", ca_file: str | Path = ""
) -> Address:
    """Return the address that a URL or `unix:PATH` names. SkerryError if it is none, or the token cannot be read."""
    if not token and token_file:
        try:
            token = Path(token_file).read_text(encoding="utf-8-sig").strip()
        except (OSError, ValueError) as error:
            raise SkerryError(f"{token_file}: {error}") from None
    if url.startswith(_UNIX):
        return Address("http://localhost", server, url.removeprefix(_UNIX), token)
    try:
        parts = urlsplit(url)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        sound = False
    if not sound:
        raise _no_address(url, server)
    return Address(url.rstrip("/"), server, "", token, str(ca_file))


def _no_address(text: str, server: str) -> SkerryError:
    article, port = ("an", 8090) if server == "agent" else ("a", 8080)
    return SkerryError(f"{text!r} is no address of {article} {server}: http://127.0.0.1:{port}, for example")


def _trust_certificate(path: Path) -> ssl.SSLContext:
    """A TLS context that trusts exactly the server's own certificate, whatever name it bears."""
    first = path.read_text(encoding="ascii").split("-----END CERTIFICATE-----")[0]
    context = ssl.create_default_context(cadata=f"{first}-----END CERTIFICATE-----\n")
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context

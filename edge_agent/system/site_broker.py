"""MQTT broker of the device's own site, as sensors and outputs name it in the configuration.

Rule: it is never the hub's broker, and fails closed: another machine is reached by TLS unless the configuration says
otherwise in so many words, and not at all from an air-gapped device.
"""

import ssl
from pathlib import Path
from typing import Annotated, NamedTuple
from urllib.parse import urlsplit

from msgspec import Meta

from wire.http.access import is_loopback
from wire.process.config import ConfigSection
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.files import read_private_file
from wire.text import strip_mark

_PORTS = {"mqtt": 1883, "mqtts": 8883}


class BrokerSection(ConfigSection, frozen=True):
    """Keys that name a broker of the site: `broker` = `mqtt://HOST[:1883]` or `mqtts://HOST[:8883]`.

    `password_file`: readable by its owner alone. `tls_ca` "": the system's authorities. `tls_cert`, `tls_key`: a client
    certificate. `allow_plaintext`: `mqtt://` may be another machine.
    """

    broker: Annotated[str, Meta(pattern=r"^(mqtts?://[^\s/@]+/?)?\Z", max_length=300)] = ""
    username: Annotated[str, Meta(max_length=200)] = ""
    password_file: str = ""
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    allow_plaintext: bool = False


BROKER_PATHS = ("password_file", "tls_ca", "tls_cert", "tls_key")


class SiteAddress(NamedTuple):
    """Host and port of a broker or web server, whether it is reached by TLS, and whether it is this machine."""

    host: str
    port: int
    tls: bool

    @property
    def is_local(self) -> bool:
        """Whether it is this machine: a loopback address, or "localhost"."""
        return is_loopback(self.host)


def parse_broker(url: str) -> SiteAddress:
    """The address that `mqtt://HOST:PORT` names. ValueError if it names none."""
    parts = urlsplit(url)
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ValueError(f"'{url[:80]}' is no address of the form mqtts://HOST:PORT")
    return SiteAddress(parts.hostname, parts.port or _PORTS[parts.scheme], parts.scheme == "mqtts")


def check_reach(where: str, address: SiteAddress, *, airgap: bool, allow_plaintext: bool, tls_name: str) -> None:
    """Raise ExitError(CONFIG) for a target that this device may not reach, or not in clear.

    `where`: the key, for the message. `tls_name`: the scheme that has TLS.
    """
    if address.is_local:
        return
    if airgap:
        raise ExitError(
            ExitCode.CONFIG, f"{where}: airgap = true reaches this machine alone, '{address.host}' is another"
        )
    if not address.tls and not allow_plaintext:
        raise ExitError(
            ExitCode.CONFIG, f"{where}: another machine has to be {tls_name}://; allow_plaintext = true sends in clear"
        )


def validate_broker(section: BrokerSection, where: str, *, airgap: bool) -> None:
    """Raise ExitError(CONFIG) for a broker that cannot be meant, or that this device may not reach."""
    try:
        address = parse_broker(section.broker)
    except ValueError as error:
        raise ExitError(ExitCode.CONFIG, f"{where}.broker: {error}") from None
    check_reach(f"{where}.broker", address, airgap=airgap, allow_plaintext=section.allow_plaintext, tls_name="mqtts")
    if section.password_file and not section.username:
        raise ExitError(ExitCode.CONFIG, f"{where}.password_file: a password without a username")
    if bool(section.tls_cert) is not bool(section.tls_key):
        raise ExitError(ExitCode.CONFIG, f"{where}.tls_cert: tls_cert and tls_key belong together")


def make_client_context(tls_ca: str, tls_cert: str = "", tls_key: str = "") -> ssl.SSLContext:
    """TLS of a client that trusts `tls_ca`, or the system's authorities. OSError if a file cannot be used."""
    context = ssl.create_default_context(cafile=tls_ca or None)
    if tls_cert:
        context.load_cert_chain(tls_cert, tls_key)
    return context


def read_secret(file: str) -> bytes:
    """A password, token or key in a file of its owner's, without the line's end. ExitError(CREDENTIALS)."""
    return strip_mark(read_private_file(Path(file))).rstrip(b"\r\n")

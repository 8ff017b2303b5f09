"""Checks of what a device needs of others: the broker's name, port and certificate, the hub, its clock, its updates.

Rule: no MQTT session is opened, since a second one of the same device would end that of its agent.
"""

import asyncio
import email.utils
import importlib.metadata
import json
import socket
import ssl
import time
from collections.abc import Iterator
from datetime import datetime
from functools import partial

from edge_agent.identity.identity import Identity
from edge_agent.system.http import make_tls_context
from wire.http.client import HttpClient, HttpReply
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.findings import Finding, Severity, judge_clock
from wire.transport.routes import LinkRoute, open_route

TIMEOUT_S = 5.0
_SLOW_S = 1.0
_ALERT_S = 0.3  # TLS 1.3: a server says that it refuses our certificate only after the handshake
_FIREWALL = "is a firewall between? the device needs this port outwards, nothing inwards"


def check_name(identity: Identity) -> Iterator[Finding]:
    """Whether the broker's name has an address."""
    host = identity.broker_host
    try:
        found = socket.getaddrinfo(host, identity.broker_port, type=socket.SOCK_STREAM)
    except OSError as error:
        text = f"{host} has no address ({error.strerror or error})"
        yield Finding("name", Severity.PROBLEM, text, "mend the name service of this machine, or its network")
        return
    yield Finding("name", Severity.FINE, f"{host} is {found[0][4][0]}")


def check_broker(identity: Identity, timeout_s: float = TIMEOUT_S) -> Iterator[Finding]:
    """Whether the broker listens, is the one of our CA, and takes our certificate."""
    where = f"{identity.broker_host}:{identity.broker_port}"
    began = time.monotonic()
    try:
        with (
            socket.create_connection((identity.broker_host, identity.broker_port), timeout_s) as plain,
            identity.tls_context().wrap_socket(plain, server_hostname=identity.broker_host) as sock,
        ):
            took_s = time.monotonic() - began
            sock.settimeout(_ALERT_S)
            _read_refusal(sock)
    except ssl.SSLCertVerificationError as error:
        text = f"{where} shows a certificate that is not of this device's hub ({error.verify_message or error})"
        raise ExitError(ExitCode.BROKER, f"{text}; is the address right? if the hub's CA is new, enrol again") from None
    except ssl.SSLError as error:
        text = f"{where} refuses this device's certificate ({error.reason or error})"
        raise ExitError(ExitCode.BROKER, f"{text}; skerry agent renew, and at the hub: skerry devices show") from None
    except TimeoutError:
        raise ExitError(ExitCode.BROKER, f"{where} does not answer within {timeout_s:g} s; {_FIREWALL}") from None
    except OSError as error:
        text = f"{where}: {error.strerror or error}"
        raise ExitError(ExitCode.BROKER, f"{text}; is the hub's broker running there? skerry hub status") from None
    yield _judge_time("broker", took_s, f"{where} takes this device's certificate")


def check_route(identity: Identity, route: LinkRoute, timeout_s: float = TIMEOUT_S) -> Iterator[Finding]:
    """Whether the way to the broker stands: the proxy lets through, what answers is of our CA, and speaks WebSocket."""
    way = route.websocket or f"{identity.broker_host}:{identity.broker_port}"
    where = f"{way} through {route.proxy}" if route.proxy else way

    async def open_once() -> None:
        async with asyncio.timeout(timeout_s):
            sock = await open_route(route, identity.broker_host, identity.broker_port, identity.tls_context())
            sock.close()

    began = time.monotonic()
    try:
        asyncio.run(open_once())
    except TimeoutError:
        raise ExitError(ExitCode.BROKER, f"{where} does not answer within {timeout_s:g} s; {_FIREWALL}") from None
    except OSError as error:
        raise ExitError(
            ExitCode.BROKER, f"{where}: {error.strerror or error}; correct link.websocket or link.proxy"
        ) from None
    yield _judge_time("broker", time.monotonic() - began, where)


def _read_refusal(sock: ssl.SSLSocket) -> None:
    """Wait for what a broker says before it was told anything: nothing, or that our certificate is refused."""
    try:
        if sock.recv(1) == b"":
            raise ssl.SSLError(1, "closed at once")
    except TimeoutError:
        return


def check_hub(identity: Identity, now_s: float, timeout_s: float = TIMEOUT_S) -> Iterator[Finding]:
    """Whether the hub answers, how fast, in which version, and whether clocks agree. `now_s`: our wall clock."""
    if not identity.hub_url:
        text = "its address is not known: enrolled by an early version"
        yield Finding("hub", Severity.WARNING, text, "suspend, invite --replace, enrol again")
        return
    began = time.monotonic()
    reply = _fetch(identity, identity.hub_url, "/v2", timeout_s)
    took_s = time.monotonic() - began
    facts = reply.json_object()
    if facts is None or not reply.ok:
        raise ExitError(ExitCode.HUB, f"{identity.hub_url} answers {reply.status} and is no hub; is something between?")
    yield _judge_time("hub", took_s, f"{identity.hub_url} answers")
    yield judge_version(str(facts.get("version", "")), importlib.metadata.version("skerry"))
    stamp = email.utils.parsedate_to_datetime(reply.date).timestamp() if reply.date else None
    if stamp is not None:
        yield judge_clock("clock", now_s - stamp, "the hub's clock")


def judge_version(hub: str, own: str) -> Finding:
    """Whether hub and device are of one release; a hub one release ahead is how an upgrade goes."""
    if not hub or hub.split(".")[:2] == own.split(".")[:2]:
        return Finding("versions", Severity.FINE, f"skerry {own} here, {hub or 'not said'} at the hub")
    return Finding("versions", Severity.WARNING, f"skerry {own} here, {hub} at the hub", "update the older one")


def check_clock(identity: Identity, now_s: float) -> Iterator[Finding]:
    """Whether this machine's time is at least what the hub signed last; a clock without a battery begins in 1970."""
    behind_s = identity.hub_time_ms / 1000 - now_s
    if behind_s > 0:
        text = f"{behind_s:,.0f} s behind the time that the hub signed when this device enrolled"
        yield Finding("clock", Severity.WARNING, text, "set the clock: timedatectl set-ntp true")


def check_repository(identity: Identity, now_s: float, timeout_s: float = TIMEOUT_S) -> Iterator[Finding]:
    """Whether the update repository can be read and its time stamp is good."""
    if not identity.tuf_url:
        return
    reply = _fetch(identity, identity.tuf_url, "/metadata/timestamp.json", timeout_s)
    try:
        ends = datetime.fromisoformat(json.loads(reply.body)["signed"]["expires"]).timestamp()
    except (ValueError, KeyError, TypeError):
        text = f"{identity.tuf_url} answers {reply.status} and has no time stamp"
        raise ExitError(ExitCode.HUB, f"{text}; at the hub: skerry repository status") from None
    if ends <= now_s:
        text = f"its time stamp ended {(now_s - ends) / 3600:,.1f} hours ago: nothing new is taken"
        yield Finding("repository", Severity.PROBLEM, text, "at the hub: skerry repository status")
        return
    yield Finding("repository", Severity.FINE, f"its time stamp is good for {(ends - now_s) / 3600:,.1f} hours")


def _fetch(identity: Identity, url: str, path: str, timeout_s: float) -> HttpReply:
    tls = partial(make_tls_context, identity.trusted, identity.hub_time_ms)
    client = HttpClient(
        url=url, server="hub", tls=tls, hint="is it running, is the address right?", timeout_s=timeout_s
    )
    return client.send("GET", path)


def _judge_time(check: str, took_s: float, text: str) -> Finding:
    told = f"{text}, in {took_s * 1000:,.0f} ms"
    if took_s > _SLOW_S:
        return Finding(
            check, Severity.WARNING, told, "the way there is slow: raise latency_budget of the policy, or mend it"
        )
    return Finding(check, Severity.FINE, told)

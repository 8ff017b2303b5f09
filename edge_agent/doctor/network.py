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
from wire.process.proxy import NO_PROXY, ForwardProxy
from wire.process.time_limits import describe_failure
from wire.transport.probe import BrokerAnswer, probe_broker
from wire.transport.routes import DIRECT, LinkRoute

TIMEOUT_S = 5.0
_VERSION_CHARS = 40
_SLOW_S = 1.0
_ALERT_S = 0.3  # TLS 1.3: a server says that it refuses our certificate only after the handshake
# Reasons of OpenSSL for bytes that are no TLS.
_NO_TLS = ("WRONG_VERSION", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "RECORD_LAYER", "PACKET_LENGTH", "WRONG_SSL_VERSION")
_OTHER_SERVER = "is the address right, and does something stand between?"
_WRONG_WAY = "correct link.websocket or link.proxy"
_FIREWALL = "is a firewall between? the device needs this port outwards, nothing inwards"


def check_name(identity: Identity) -> Iterator[Finding]:
    """Whether the broker's name has an address."""
    host = identity.broker_host
    try:
        found = socket.getaddrinfo(host, identity.broker_port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        text = f"{host} has no address ({getattr(error, 'strerror', None) or error})"
        yield Finding("name", Severity.PROBLEM, text, "mend the name service of this machine, or its network")
        return
    yield Finding("name", Severity.FINE, f"{host} is {found[0][4][0]}")


def check_broker(identity: Identity, route: LinkRoute = DIRECT, timeout_s: float = TIMEOUT_S) -> Iterator[Finding]:
    """Whether what answers at the end of the way is the broker of our CA, takes our certificate, and speaks MQTT.

    `timeout_s`: of each step.
    """
    way = route.websocket or f"{identity.broker_host}:{identity.broker_port}"
    where = f"{way} through {route.proxy}" if route.proxy else way
    tls = identity.tls_context()
    began = time.monotonic()
    try:
        answer = asyncio.run(
            probe_broker(route, identity.broker_host, identity.broker_port, tls, step_s=timeout_s, alert_s=_ALERT_S)
        )
    except OSError as error:
        raise ExitError(ExitCode.BROKER, f"{where}: {_explain_failure(error, route, timeout_s)}") from None
    if answer in (BrokerAnswer.HTTP, BrokerAnswer.OTHER, BrokerAnswer.SILENT):
        raise ExitError(ExitCode.BROKER, f"{where} {answer}; {_OTHER_SERVER}")
    if answer is BrokerAnswer.CLOSED and not route.websocket:
        text = f"{where} takes this device's certificate and {answer}"
        yield Finding("broker", Severity.WARNING, text, "skerry agent status says whether it lets the device in")
        return
    took_s = max(0.0, time.monotonic() - began - _ALERT_S)
    yield _judge_time("broker", took_s, f"{where} takes this device's certificate")


def _explain_failure(error: OSError, route: LinkRoute, timeout_s: float) -> str:
    """What kept us from the broker, and what to do about it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        why = getattr(error, "verify_message", "") or str(error.args[-1] if error.args else error)
        text = f"shows a certificate that this device does not take ({why})"
        return f"{text}; is the address right? at the hub: skerry hub doctor; if the hub's CA is new, enrol again"
    if isinstance(error, ssl.SSLError):
        reason = str(getattr(error, "reason", "") or (error.args[-1] if error.args else error))
        if any(word in reason.upper() for word in _NO_TLS):
            return f"what answers speaks no TLS ({reason}): a captive portal or another server; {_OTHER_SERVER}"
        text = f"refuses this device's certificate, or ends the handshake ({reason})"
        return f"{text}; skerry agent renew, and at the hub: skerry devices show"
    what = describe_failure(error, "connection", timeout_s)
    if isinstance(error, TimeoutError):
        return f"{what}; {_FIREWALL}"
    return f"{what}; {_WRONG_WAY if route != DIRECT else 'is the broker running there? skerry hub status'}"


def check_hub(
    identity: Identity, now_s: float, proxy: ForwardProxy = NO_PROXY, timeout_s: float = TIMEOUT_S
) -> Iterator[Finding]:
    """Whether the hub answers, how fast, in which version, and whether clocks agree. `now_s`: our wall clock."""
    if not identity.hub_url:
        text = "its address is not known: enrolled by an early version"
        yield Finding("hub", Severity.WARNING, text, "suspend, invite --replace, enrol again")
        return
    began = time.monotonic()
    reply = _fetch(identity, identity.hub_url, "/v2", proxy, timeout_s)
    took_s = time.monotonic() - began
    facts = reply.json_object()
    if facts is None or not reply.ok or not isinstance(facts.get("name"), str):
        raise ExitError(ExitCode.HUB, f"{identity.hub_url} answers {reply.status} and is no hub; is something between?")
    yield _judge_time("hub", took_s, f"{identity.hub_url} answers")
    yield judge_version(str(facts.get("version", ""))[:_VERSION_CHARS], importlib.metadata.version("skerry"))
    stamp = _read_date(reply.date)
    if stamp is not None:
        yield judge_clock("clock", now_s - stamp, "the hub's clock")


def _read_date(text: str) -> float | None:
    """Seconds since 1970 of a Date header; None for one that is none."""
    try:
        return email.utils.parsedate_to_datetime(text).timestamp() if text else None
    except (ValueError, OverflowError, TypeError):
        return None


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


def check_repository(
    identity: Identity, now_s: float, proxy: ForwardProxy = NO_PROXY, timeout_s: float = TIMEOUT_S
) -> Iterator[Finding]:
    """Whether the update repository can be read and its time stamp is good."""
    if not identity.tuf_url:
        return
    reply = _fetch(identity, identity.tuf_url, "/metadata/timestamp.json", proxy, timeout_s)
    try:
        ends = datetime.fromisoformat(json.loads(reply.body)["signed"]["expires"]).timestamp()
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
        text = f"{identity.tuf_url} answers {reply.status} and has no time stamp"
        raise ExitError(ExitCode.HUB, f"{text}; at the hub: skerry repository status") from None
    if ends <= now_s:
        text = f"its time stamp ended {(now_s - ends) / 3600:,.1f} hours ago: nothing new is taken"
        yield Finding("repository", Severity.PROBLEM, text, "at the hub: skerry repository status")
        return
    yield Finding("repository", Severity.FINE, f"its time stamp is good for {(ends - now_s) / 3600:,.1f} hours")


def _fetch(identity: Identity, url: str, path: str, proxy: ForwardProxy, timeout_s: float) -> HttpReply:
    tls = partial(make_tls_context, identity.trusted, identity.hub_time_ms)
    client = HttpClient(
        url=url, server="hub", tls=tls, hint="is it running, is the address right?", timeout_s=timeout_s, proxy=proxy
    )
    return client.send("GET", path)


def _judge_time(check: str, took_s: float, text: str) -> Finding:
    told = f"{text}, in {took_s * 1000:,.0f} ms"
    if took_s > _SLOW_S:
        return Finding(
            check, Severity.WARNING, told, "the way there is slow: raise latency_budget of the policy, or mend it"
        )
    return Finding(check, Severity.FINE, told)

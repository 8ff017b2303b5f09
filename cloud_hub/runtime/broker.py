"""Mosquitto as a child process of the hub: generated configuration and ACL, supervision, restart and shutdown.

Rule: the broker is a lossy pipe under our own configuration; it never outlives the hub, and its configuration and ACL
are never edited or reloaded while it runs (a broken ACL at SIGHUP would open every topic). It reads copies in its own
folder, which is its working folder, so that it may be a user who can read nothing else of the hub's.
"""

import asyncio
import contextlib
import errno
import os
import random
import shutil
import signal
import socket
import sys
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path

from cloud_hub.runtime.broker_user import BrokerUser, choose_user, give_folder, use_own_user
from cloud_hub.security.authority import CertificateFiles
from policies.monitoring.backoff import compute_delay
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.files import write_private_file
from wire.process.logging import JsonLog, safe_name, safe_text
from wire.protocol.codec import MAX_FRAME_BYTES
from wire.protocol.topics import render_broker_acl

IN_FLIGHT_WINDOW = 32  # unreceipted questions a device may have in flight
MAX_PACKET_BYTES = MAX_FRAME_BYTES + 4096  # topic, properties
START_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 5.0
STABLE_S = 60.0  # after this uptime the restart backoff starts anew
_PROBE_EVERY_S = 0.01
_FIRST_WAIT_S = 0.25
_LONGEST_WAIT_S = 15.0
_LINE_BYTES = 4096
_SBIN_FOLDERS = ("/usr/sbin", "/usr/local/sbin", "/opt/homebrew/sbin", "/opt/homebrew/opt/mosquitto/sbin")
_ENVIRONMENT = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "OPENSSL_CONF")
_HOW_TO_INSTALL = (
    "mosquitto is missing: install it with `sudo apt-get install mosquitto` (Debian, Ubuntu) "
    "or `brew install mosquitto` (macOS)"
)
_CHILD = Path(__file__).with_name("broker_child.py")
_LOW_PORTS = range(1, 1024)
_NOT_ALLOWED = (errno.EPERM, errno.EINVAL, errno.ENOTSUP)  # a user namespace, a network file system
# The names of its files, in its working folder.
_CONFIG, _RULES, _QUEUES = "mosquitto.conf", "acl", "mosquitto.db"
_CERTIFICATE, _KEY, _TRUSTED = "server.pem", "server.key", "ca.pem"
_HASHED = "????????.0"  # a CA under the name by which OpenSSL looks it up


@dataclass(frozen=True)
class BrokerSettings:
    """Settings of the child broker.

    `devices` sizes the queues; `program` "" = look for mosquitto; port 0 = a free one, chosen once.
    `websocket_port`: of one more listener, for MQTT over WebSocket; 0 = none. `user`: whom a Mosquitto that is started
    as root becomes; "" = the user of this process.
    """

    folder: Path
    host: str = "127.0.0.1"
    port: int = 18883
    devices: int = 1000
    program: str = ""
    session_days: int = 7
    websocket_port: int = 0
    user: str = ""


@dataclass(frozen=True)
class BrokerTls:
    """What the broker proves itself by, and which CAs it trusts.

    `ca_file`: all of them in one file, read at a start. `ca_folder`: the same as an OpenSSL hash directory, which may
    gain a CA while the broker runs; None = there is none. Listeners for WebSocket read the file alone.
    """

    server: CertificateFiles
    ca_file: Path
    ca_folder: Path | None = None


def render_config(settings: BrokerSettings, tls: BrokerTls) -> str:
    """Return the text of mosquitto.conf. ValueError if a path contains a line break."""
    server, trusted = tls.server, tls.ca_folder or tls.ca_file
    for path in (settings.folder, trusted, tls.ca_file, server.certificate, server.key):
        if "\n" in str(path) or "\r" in str(path):
            raise ValueError(f"a path with a line break cannot stand in mosquitto.conf: {str(path)!r}")
    queue = max(1000, settings.devices * IN_FLIGHT_WINDOW)
    ip6 = ":" in settings.host
    lines = (
        "per_listener_settings false",
        f"user {settings.user or use_own_user().name}",  # unset, a root would become a user who cannot read our files
        f"listener {settings.port} {settings.host}",
        f"socket_domain {'ipv6' if ip6 else 'ipv4'}",
        f"{'capath' if tls.ca_folder else 'cafile'} {trusted}",
        f"certfile {server.certificate}",
        f"keyfile {server.key}",
        "tls_version tlsv1.2",
        "require_certificate true",
        "use_identity_as_username true",
        "use_username_as_clientid true",  # without it a device takes over another's session by naming its client id
        *_render_websocket(settings, tls),
        "allow_anonymous false",
        f"acl_file {settings.folder / 'acl'}",
        "set_tcp_nodelay true",
        f"max_packet_size {MAX_PACKET_BYTES}",
        "max_keepalive 120",
        "max_inflight_messages 1000",
        f"max_queued_messages {queue}",  # per client: the hub's own queue must hold every device's window
        "max_queued_bytes 0",
        "retain_available false",
        "sys_interval 0",
        "persistence true",
        f"persistence_location {settings.folder}/",
        "autosave_interval 5",
        f"persistent_client_expiration {settings.session_days}d",
        "log_dest stderr",
        "log_type error",
        "log_type warning",
        "log_type notice",
        "log_timestamp false",
        "connection_messages false",
    )
    return "\n".join(lines) + "\n"


def _render_websocket(settings: BrokerSettings, tls: BrokerTls) -> tuple[str, ...]:
    """The second listener, with the same doors closed as the first; Mosquitto takes its CAs as one file alone."""
    if not settings.websocket_port:
        return ()
    return (
        f"listener {settings.websocket_port} {settings.host}",
        f"socket_domain {'ipv6' if ':' in settings.host else 'ipv4'}",
        "protocol websockets",
        f"cafile {tls.ca_file}",
        f"certfile {tls.server.certificate}",
        f"keyfile {tls.server.key}",
        "tls_version tlsv1.2",
        "require_certificate true",
        "use_identity_as_username true",
        "use_username_as_clientid true",
    )


def find_program(wanted: str = "", path: str | None = None) -> str:
    """Return the path of the mosquitto program.

    ExitError(BROKER) that says how to install it. `path` None = $PATH and where packages put it.
    """
    everywhere = os.pathsep.join((os.environ.get("PATH", ""), *_SBIN_FOLDERS))
    found = shutil.which(wanted or "mosquitto", path=everywhere if path is None else path)
    if found is None:
        raise ExitError(
            ExitCode.BROKER, f"{wanted} is not a program: correct [broker] program" if wanted else _HOW_TO_INSTALL
        )
    return found


def choose_port(host: str, port: int) -> int:
    """Return `port` if it can be bound now (0: a free one); ExitError(PORT) otherwise."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ExitError(
                ExitCode.PORT, f"broker: cannot use {host}:{port} ({error.strerror}): set another [broker] port"
            ) from None
        return int(probe.getsockname()[1])


class Broker:
    """One mosquitto child process. Call `start`, run `supervise` as a task of the hub's group, then `stop`.

    It runs as `user`; `tls` names the hub's files, which are copied for it. `port` is the one in use, `restarts` how
    often it was started again.
    """

    def __init__(self, settings: BrokerSettings, tls: BrokerTls, log: JsonLog, user: BrokerUser | None = None) -> None:
        self._settings = settings
        self._tls = tls
        self._log = log
        self._user = user or choose_user()
        self._program = Path(find_program(settings.program)).absolute()  # its working folder is another one
        self.port = choose_port(settings.host, settings.port)
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._stopping = False
        self._last_lines: deque[str] = deque(maxlen=5)
        self._wanted = False  # the restart under way
        self._back = asyncio.Event()
        self.restarts = 0
        self.stop_timeout_s = STOP_TIMEOUT_S

    @property
    def pid(self) -> int | None:
        """Process id of the running broker, None while there is none."""
        running = self._process is not None and self._process.returncode is None
        return self._process.pid if self._process and running else None

    @property
    def host(self) -> str:
        return self._settings.host

    async def start(self) -> None:
        """Write the configuration, start the child, wait until it accepts connections.

        ExitError(BROKER) with the last lines of its log. A damaged queue file is set aside once.
        """
        try:
            await self._start_child()
        except OSError as error:  # no descriptors or processes left
            raise ExitError(ExitCode.BROKER, f"mosquitto cannot be started: {error.strerror}") from None

    async def _start_child(self) -> None:
        self._give_folder()
        self._write_files()
        try:
            await self._launch_child()
        except ExitError:
            if not self._set_queues_aside():
                raise
            await self._launch_child()

    async def supervise(self) -> None:
        """Restart a dead broker with a jittered wait, for ever; returns after `stop`."""
        attempt = 0
        loop = asyncio.get_running_loop()
        while self._process is not None:
            began = loop.time()
            code = await self._process.wait()
            if self._stopping:
                return
            attempt = 0 if loop.time() - began > STABLE_S or self._wanted else attempt + 1
            wait_s = 0.0 if self._wanted else compute_delay(attempt, random.random(), _FIRST_WAIT_S, _LONGEST_WAIT_S)  # noqa: S311 - jitter
            self._log.warning("broker_restarts" if self._wanted else "broker_died", code=code, wait_s=wait_s)
            self._wanted = False
            await asyncio.sleep(wait_s)
            await self._restart_child()

    def _ports(self) -> tuple[int, ...]:
        """Those it listens on; a listener for WebSocket opens after the other one."""
        websocket = self._settings.websocket_port
        return (self.port, websocket) if websocket else (self.port,)

    async def add_authorities(self) -> None:
        """Have the running broker trust the CAs that were added; a listener for WebSocket learns it by a restart."""
        self._write_authorities()
        if self._settings.websocket_port:
            await self.restart()

    async def restart(self) -> None:
        """Restart at once with a configuration written anew; sessions and queues are kept. No reload reads a new CA.

        Returns when the new child accepts; `supervise` must be running.
        """
        if self.pid is None:
            return  # the next child reads the new files anyway
        self._wanted = True
        self._back.clear()
        self._send_signal(signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._back.wait(), self.stop_timeout_s)
            return
        self._send_signal(signal.SIGKILL)
        await self._back.wait()

    async def stop(self) -> None:
        """End the child and wait for it; SIGKILL after 5 s."""
        self._stopping = True
        if self._process is not None and self._process.returncode is None:
            self._send_signal(signal.SIGTERM)
            try:
                await asyncio.wait_for(self._process.wait(), self.stop_timeout_s)
            except TimeoutError:
                self._send_signal(signal.SIGKILL)
                await self._process.wait()
        if self._reader is not None:
            await self._reader

    def _give_folder(self) -> None:
        """Give the broker's user what the broker has written before, as another user or by an earlier version.

        Where the system does not allow that, the broker stays root, and a warning says why.
        """
        owner = self._user.owner
        if owner is not None:
            try:
                give_folder(self._settings.folder, owner)
            except OSError as error:
                if error.errno not in _NOT_ALLOWED:
                    raise
                self._user = use_own_user(f"its folder cannot be given to {self._user.name}: {error.strerror}")
        if self._user.why_root and not self._process:  # at the first start
            advice = safe_text(f"its broker is root too, {self._user.why_root}: start the hub as a user of its own")
            self._log.warning("runs_as_root", advice=advice)

    def _write_files(self) -> None:
        own = CertificateFiles(Path(_CERTIFICATE), Path(_KEY))
        names = BrokerTls(own, Path(_TRUSTED), Path() if self._tls.ca_folder else None)
        settings = replace(self._settings, port=self.port, folder=Path(), user=self._user.name)
        self._write(_RULES, render_broker_acl().encode())
        self._write(_CONFIG, render_config(settings, names).encode())
        self._write(_CERTIFICATE, self._tls.server.certificate.read_bytes())
        self._write(_KEY, self._tls.server.key.read_bytes())
        self._write_authorities()

    def _write_authorities(self) -> None:
        hashed = sorted(self._tls.ca_folder.iterdir()) if self._tls.ca_folder else []
        self._write(_TRUSTED, self._tls.ca_file.read_bytes())
        for path in hashed:
            self._write(path.name, path.read_bytes())
        for path in self._settings.folder.glob(_HASHED):
            if path.name not in {each.name for each in hashed}:
                path.unlink()

    def _write(self, name: str, data: bytes) -> None:
        # Not synced: it is written anew at each start. Not compared with what is there, which the broker's user owns.
        write_private_file(self._settings.folder / name, data, synced=False, owner=self._user.owner)

    async def _launch_child(self) -> None:
        owner = self._user.owner
        user = f"{owner.user}:{owner.group}" if owner else "-"
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", str(_CHILD), str(os.getpid())),
            *(user, "low" if any(port in _LOW_PORTS for port in self._ports()) else "-"),
            *(str(self._program), "-c", _CONFIG),
            cwd=self._settings.folder,
            env=_make_environment(),
            # A child that kept our stdout would hold the reader of `skerry ... | tee` for ever.
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        self._last_lines.clear()
        self._reader = asyncio.create_task(self._read_log(self._process), name="broker-log")
        if self._stopping:  # `stop` came while the child was being made
            self._send_signal(signal.SIGKILL)
        await self._wait_until_ready(self._process)

    def _set_queues_aside(self) -> bool:
        """Rename a damaged queue file, kept for inspection: it must not keep the hub down."""
        queues = self._settings.folder / _QUEUES
        if not queues.exists() or not any("persistent database" in line for line in self._last_lines):
            return False
        damaged = f"{_QUEUES}.damaged"
        queues.replace(queues.with_name(damaged))
        self._log.error("broker_queues_damaged", kept=safe_name(damaged))
        return True

    def _send_signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def _restart_child(self) -> None:
        if self._stopping:
            return
        self.restarts += 1
        try:
            await self.start()
        except ExitError as stop:  # `supervise` tries again
            self._log.error("broker_does_not_start", said=safe_text(str(stop)))
        self._back.set()

    async def _wait_until_ready(self, process: asyncio.subprocess.Process) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + START_TIMEOUT_S
        while loop.time() < deadline:
            if process.returncode is not None:
                break
            if all([await _accepts_connection(self._settings.host, port) for port in self._ports()]):
                return
            await asyncio.sleep(_PROBE_EVERY_S)
        if process.returncode is None:
            process.kill()
        await process.wait()
        if self._reader is not None:
            await self._reader
        raise ExitError(ExitCode.BROKER, f"mosquitto does not start: {' | '.join(self._last_lines) or 'no log line'}")

    async def _read_log(self, process: asyncio.subprocess.Process) -> None:
        """Read the child's log without end: a full pipe would block the broker."""
        rest = b""
        while process.stderr is not None:
            chunk = await process.stderr.read(_LINE_BYTES)
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self._log_line(line[:_LINE_BYTES].decode("utf-8", "replace").strip())
            rest = rest[:_LINE_BYTES]
            if not chunk:
                return

    def _log_line(self, line: str) -> None:
        if line:
            self._last_lines.append(line[:400])
            self._log.info("mosquitto", said=safe_text(line))


def _make_environment() -> dict[str, str]:
    """What the broker is given of our environment: it needs no setting and no secret of the hub's."""
    return {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}


async def _accepts_connection(host: str, port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(host, port)
    except OSError:
        return False
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True

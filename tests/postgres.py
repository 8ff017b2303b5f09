"""A private PostgreSQL server for tests and benchmarks: one folder, one Unix socket, durable as a real one.

Rule: it listens at no network address, runs as a user that is not root, and ends with whoever started it. What it is
told to forget (a database, the folder) is gone afterwards.
"""

import contextlib
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import sqlalchemy as sa

from simulations.processes import list_children

OWNER = "skerry"  # the server's own superuser; the password is drawn for each server
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0
_POLL_S = 0.02
# A file system in memory that only the server sees, and that goes with it; a user who is not root may make it where the
# kernel lets him have name spaces of his own.
_IN_OWN_SPACE = ("unshare", "--user", "--map-current-user", "--keep-caps", "--mount")
_MOUNT = 'mount -t tmpfs -o "size=$0,mode=700" none "$1" && shift && exec "$@"'
_DEBIAN = Path("/usr/lib/postgresql")
_SETTINGS = {
    "listen_addresses": "",
    "max_connections": "60",
    "shared_buffers": "64MB",
    "max_wal_size": "256MB",
    "fsync": "on",
    "synchronous_commit": "on",
}


def find_programs() -> Path | None:
    """The folder of `initdb` and `postgres`, the newest version's; None if PostgreSQL is not installed."""
    versions = sorted(_DEBIAN.glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]), reverse=True)
    found = str(versions[0]) if versions else shutil.which("postgres")
    return Path(found).resolve().parent if found else None


def can_fill_disk() -> bool:
    """Whether this machine lets a server have a disk of its own size."""
    account = _find_account()
    if shutil.which("unshare") is None:
        return False
    tried = subprocess.run([*_IN_OWN_SPACE, "true"], user=account, capture_output=True, check=False)
    return tried.returncode == 0


class PostgresServer:
    """One server in a folder of its own. A context: on leaving it the server is stopped and the folder removed.

    `settings` go over the server's own (`fsync` is on). `disk_mib`: its databases lie on a disk of that size, which
    can be full and goes with its process; 0 = beside the rest. RuntimeError if it does not start.
    """

    def __init__(self, settings: Mapping[str, str] | None = None, disk_mib: int = 0) -> None:
        programs = find_programs()
        if programs is None:
            raise RuntimeError("PostgreSQL is not installed: ./setup.sh dev installs it")
        self._programs = programs
        # Short, since a socket's path is at most 107 bytes long, and a folder that the server's user can reach.
        self.folder = Path(tempfile.mkdtemp(prefix="skerry-pg-"))
        self._data, self._password = self.folder / "data", secrets.token_hex(16)
        self._account = _find_account()
        self._disk = (self.folder / "disk", disk_mib) if disk_mib else None
        self._settings = {**_SETTINGS, "unix_socket_directories": str(self.folder), **(settings or {})}
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self._create_cluster()
            self.start()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    @property
    def pid(self) -> int:
        """Process id of the server. RuntimeError if it does not run."""
        if self._process is None:
            raise RuntimeError("the server does not run")
        return self._process.pid

    @property
    def port(self) -> int:
        """Number of its socket, and the TCP port where its settings have it listen at an address."""
        return int(self._settings.get("port", 5432))

    def url_of(self, database: str, password: str | None = None) -> str:
        """SQLAlchemy URL of a database, as the server's own superuser."""
        url = sa.URL.create(
            "postgresql+psycopg",
            OWNER,
            self._password if password is None else password,
            port=self.port,
            database=database,
            query={"host": str(self.folder)},
        )
        return url.render_as_string(hide_password=False)

    def create_database(self) -> str:
        """URL of a new, empty database."""
        name = f"t{secrets.token_hex(6)}"
        self.run_statement(f"create database {name}{' tablespace disk' if self._disk else ''}")
        return self.url_of(name)

    def drop_database(self, url: str) -> None:
        """Delete a database, whoever is connected to it."""
        self.run_statement(f"drop database {sa.make_url(url).database} with (force)")

    def run_statement(self, statement: str, url: str | None = None) -> None:
        """Run one statement outside a transaction; without `url` in the server's first database."""
        engine = sa.create_engine(url or self.url_of("postgres"), poolclass=sa.NullPool, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.exec_driver_sql(statement)

    def start(self) -> None:
        """Start the server and wait until it takes connections."""
        words = [f"-c{name}={value}" for name, value in self._settings.items()]
        program: list[str | Path] = [self._programs / "postgres", "-D", self._data, *words]
        if self._disk:
            program = [*_IN_OWN_SPACE, "sh", "-c", _MOUNT, f"{self._disk[1]}m", self._disk[0], *program]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                program, stdout=log, stderr=log, user=self._account,
                group=None if self._account is None else pwd.getpwnam(self._account).pw_gid, start_new_session=True,
                cwd=self.folder,
            )  # fmt: skip
        self.wait_ready()
        if self._disk:
            self.run_statement(f"create tablespace disk location '{self._disk[0]}'")

    def wait_ready(self) -> None:
        """Wait until the server takes connections. RuntimeError with its last line if it does not."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                self.run_statement("select 1")
            except sa.exc.OperationalError:
                ended = self._process is None or self._process.poll() is not None
                if ended or time.monotonic() > deadline:
                    lines = (self.folder / "log").read_text(encoding="utf-8", errors="replace").splitlines()
                    raise RuntimeError(f"PostgreSQL did not start: {lines[-1:]}") from None
                time.sleep(_POLL_S)
            else:
                return

    def kill(self) -> None:
        """End the server as a power cut would (SIGKILL); its own processes notice it and end."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Stop the server at once, in order; whoever is connected is cut off."""
        self._end(signal.SIGINT)

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the server's every process, such as SIGSTOP for one that answers nobody any more."""
        for process in (self.pid, *list_children(self.pid, "postgres")):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)

    def remove(self) -> None:
        """Stop the server and remove its folder."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(number)
            process.wait(STOP_TIMEOUT_S)

    def _create_cluster(self) -> None:
        secret = self.folder / "password"
        secret.write_text(self._password)
        if self._disk:
            self._disk[0].mkdir()
        if self._account is not None:
            for path in (self.folder, secret, *([self._disk[0]] if self._disk else [])):
                shutil.chown(path, self._account)
        options = ["--auth=scram-sha-256", f"--username={OWNER}", f"--pwfile={secret}", "--encoding=UTF8", "--locale=C"]
        done = subprocess.run(
            [self._programs / "initdb", "-D", self._data, *options], user=self._account, cwd=self.folder,
            group=None if self._account is None else pwd.getpwnam(self._account).pw_gid, capture_output=True,
            text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"initdb: {done.stderr.strip()}")


def _find_account() -> str | None:
    """The user the server runs as: nobody else than us, or, as it refuses root, Debian's `postgres`, or `nobody`."""
    if os.geteuid():
        return None
    known = {each.pw_name for each in pwd.getpwall()}
    return next(name for name in ("postgres", "nobody") if name in known)

"""Files of a Mosquitto that is no hub's child: configuration, access rules, trusted CAs and a server certificate.

Rule: the broker's folder holds no key of the CA and none of the region, so that a broker that is broken into can issue
nothing and open nothing. The CA is taken out of the region's database for the moment of signing.
"""

import contextlib
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy.exc import DBAPIError

from cloud_hub.database.errors import explain_error
from cloud_hub.region.shared_files import CA_KEY, KEY_FILE, SharedFiles, has_region
from cloud_hub.runtime.bootstrap import read_newest_time
from cloud_hub.runtime.broker import BrokerSettings, BrokerTls, render_config
from cloud_hub.runtime.config import HubConfig
from cloud_hub.security.authorities import RotatingAuthority
from cloud_hub.security.authority import CertificateFiles, utc_now
from cloud_hub.system.state_folder import StateDir, make_private_folder
from wire.http.access import WILDCARD_HOSTS
from wire.process.daemon import FolderLock
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.files import write_private_file
from wire.protocol.topics import render_broker_acl

RESTART_STAMP = "restart.stamp"  # written anew whenever a running broker has to be restarted
_TRUSTED = "ca"  # an OpenSSL hash directory: a running broker sees a CA that is added
_TRUSTED_FILE = "ca.pem"
_PAIR = ("server.pem", "server.key")


class NoRegionYetError(Exception):
    """The database has no hub's CA yet: the region's first hub has not started."""


class BrokerFiles:
    """The files of one broker in `folder`. `listen`: the address it listens at, at the port of `[broker] port`.

    Its certificate is for `[broker] host`, `address` and `names` alone: it cannot stand in for a hub's web API.
    """

    def __init__(self, config: HubConfig, folder: Path, listen: str) -> None:
        if config.broker.start:
            raise ExitError(ExitCode.CONFIG, "[broker] start is true: the hub runs its broker itself")
        if not config.broker.port:
            raise ExitError(ExitCode.CONFIG, "[broker] port is 0: name the port that devices are given")
        self._config = config
        self._folder = folder.absolute()
        self._listen = listen

    def write(self) -> list[str]:
        """Write what is missing or not as it should be; returns the names of what was written.

        NoRegionYetError while the region has no CA. ExitError(REGION_KEY) without the region's key, LOCKED beside a
        running hub on files, else as `check_server` says.
        """
        make_private_folder(self._folder)
        with self._open_authority() as authorities:
            written = [*self._write_trusted(authorities), *self._ensure_pair(authorities)]
        settings = BrokerSettings(
            self._folder, self._listen, self._config.broker.port, devices=self._config.broker.devices
        )
        server = CertificateFiles(*(self._folder / name for name in _PAIR))
        texts = {
            "mosquitto.conf": render_config(
                settings, BrokerTls(server, self._folder / _TRUSTED_FILE, self._folder / _TRUSTED)
            ),
            "acl": render_broker_acl(),
        }
        written += [name for name, text in texts.items() if self._write_changed(name, text.encode())]
        if any(not name.startswith(f"{_TRUSTED}/") and name != _TRUSTED_FILE for name in written):
            write_private_file(self._folder / RESTART_STAMP, f"{time.time_ns()}\n".encode())
        return written

    @contextlib.contextmanager
    def _open_authority(self) -> Iterator[RotatingAuthority]:
        """The hub's CA: of its state folder, or of its region's database, in a folder that is gone afterwards."""
        state = self._config.state_dir()
        if not self._config.store.url:
            if not (state.certificates / "ca.key").exists():
                raise ExitError(ExitCode.CONFIG, f"no hub has its state in {state.root}: `skerry hub init` makes one")
            with FolderLock(state.root):
                yield RotatingAuthority.open(state.certificates, utc_now())
            return
        self._config.check_database()
        with tempfile.TemporaryDirectory(prefix="skerry-broker-") as scratch:
            copy = StateDir(Path(scratch)).prepare()
            self._fetch_region(state, copy)
            yield RotatingAuthority.open(copy.certificates, utc_now())

    def _fetch_region(self, state: StateDir, copy: StateDir) -> None:
        url = self._config.store.url
        if not has_region(url):
            raise NoRegionYetError
        with contextlib.suppress(FileNotFoundError):  # then the region says whose key is missing
            shutil.copy2(state.root / KEY_FILE, copy.root / KEY_FILE)
        try:
            with contextlib.closing(SharedFiles.open(url, copy.root)) as shared:
                found = shared.read_stored("pki/")
        except DBAPIError as error:
            raise explain_error(error, url) from None
        except ExitError as error:
            raise ExitError(error.code, str(error).replace(str(copy.root), str(state.root))) from None
        if CA_KEY not in found:
            raise NoRegionYetError
        for path, data in found.items():
            write_private_file(copy.root / path, data)

    def _write_trusted(self, authorities: RotatingAuthority) -> list[str]:
        folder = self._folder / _TRUSTED
        make_private_folder(folder)
        wanted = {path.name: path.read_bytes() for path in authorities.trusted_folder.iterdir()}
        written = [
            f"{_TRUSTED}/{name}" for name, pem in wanted.items() if self._write_changed(f"{_TRUSTED}/{name}", pem)
        ]
        for path in folder.iterdir():
            if path.name not in wanted:
                path.unlink()
        trusted = authorities.trusted_file.read_bytes()
        return written + ([_TRUSTED_FILE] if self._write_changed(_TRUSTED_FILE, trusted) else [])

    def _ensure_pair(self, authorities: RotatingAuthority) -> list[str]:
        """Issue the server certificate unless the one that is there is good; its names are the broker's alone."""
        section = self._config.broker
        names = dict.fromkeys((section.host, section.address, *section.names))
        with tempfile.TemporaryDirectory(prefix="skerry-broker-") as scratch:
            for name in _PAIR:
                with contextlib.suppress(FileNotFoundError):
                    shutil.copy2(self._folder / name, Path(scratch) / name)
            hub_time = read_newest_time(self._config.database_urls().questions)
            wanted = tuple(name for name in names if name not in WILDCARD_HOSTS)
            made = authorities.current.ensure_server(Path(scratch), wanted, utc_now(), hub_time)
            pair = (made.certificate, made.key)
            return [path.name for path in pair if self._write_changed(path.name, path.read_bytes())]

    def _write_changed(self, name: str, data: bytes) -> bool:
        path = self._folder / name
        if path.exists() and path.read_bytes() == data:
            return False
        write_private_file(path, data)
        return True

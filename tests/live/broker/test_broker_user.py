"""The broker of a hub that is root: another user, who reads nothing of the hub's, over restarts and changes of CA."""

import asyncio
import io
import os
import shutil
import ssl
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cloud_hub.runtime.broker import Broker, BrokerSettings, BrokerTls
from cloud_hub.runtime.broker_user import BrokerUser, choose_user
from cloud_hub.security.authorities import RotatingAuthority
from cloud_hub.security.authority import CertificateFiles, utc_now
from simulations.processes import find_free_port
from tests import ROOT
from wire.process.exit_codes import ExitError
from wire.process.files import FileOwner
from wire.process.logging import JsonLog
from wire.transport.base import LinkLostError
from wire.transport.mqtt import MqttTransport
from wire.transport.routes import LinkRoute

pytestmark = [pytest.mark.live, pytest.mark.skipif(os.geteuid() != 0, reason="only root can choose another user")]
LOW_PORT = 843
PRIVATE = 0o077  # no right for a group or for others


class Site:
    """A hub's CA in a private folder, the broker that it starts as root, and connections to it."""

    def __init__(self, root: Path, *, port: int = 0, websocket_port: int = 0, user: BrokerUser | None = None) -> None:
        self.pki = root / "pki"
        self.folder = root / "broker"
        for folder in (self.pki, self.folder):
            folder.mkdir(mode=0o700, exist_ok=True)
        self.authorities = RotatingAuthority.open(self.pki, utc_now())
        server = self.authorities.ensure_server((), utc_now())
        tls = BrokerTls(server, self.authorities.trusted_file, self.authorities.trusted_folder)
        settings = BrokerSettings(self.folder, port=port, websocket_port=websocket_port)
        self.log = io.StringIO()
        self.broker = Broker(settings, tls, JsonLog(self.log), user)
        self._supervising: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self.broker.start()
        self._supervising = asyncio.create_task(self.broker.supervise())

    async def stop(self) -> None:
        await self.broker.stop()
        if self._supervising is not None:
            await self._supervising

    def issue(self, name: str) -> ssl.SSLContext:
        """A device's context, of the CA that issues certificates now, which trusts every one that the hub trusts."""
        issuer = self.authorities.coming or self.authorities.current
        pair = issuer.ensure_client(self.pki, f"{name}-{issuer.sha256[:8]}", utc_now())
        return context(self.authorities.trusted_file, pair)

    async def reaches(self, tls: ssl.SSLContext, route: LinkRoute | None = None) -> bool:
        where = ("127.0.0.1", self.broker.port, "demo--a", tls)
        try:
            link = await MqttTransport.connect_by(route or LinkRoute(), *where, timeout_s=20)
        except LinkLostError:
            return False
        await link.close()
        return True

    def users(self) -> set[int]:
        """Every user id and group id that the broker's process has."""
        assert self.broker.pid is not None
        lines = Path(f"/proc/{self.broker.pid}/status").read_text().splitlines()
        return {
            int(word) for line in lines if line.startswith(("Uid:", "Gid:", "Groups:")) for word in line.split()[1:]
        }

    def powers(self) -> int:
        """The capabilities that the broker's process has, or could take."""
        lines = Path(f"/proc/{self.broker.pid}/status").read_text().splitlines()
        return int("0" + next(line.split()[1] for line in lines if line.startswith("CapPrm:")), 16)


def context(trusted: Path, pair: CertificateFiles) -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=trusted)
    made.load_cert_chain(pair.certificate, pair.key)
    return made


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    opened = Site(tmp_path)
    await opened.start()
    yield opened
    await opened.stop()


def readable_by(owner: FileOwner, root: Path) -> list[str]:
    """What a process of that user can read below a folder, by trying: it begins in the folder, as the broker does."""
    code = (
        "import os,sys;os.chdir(sys.argv[1]);os.setgroups([]);os.setgid(int(sys.argv[3]));os.setuid(int(sys.argv[2]))\n"
        "for top,_,names in os.walk('.'):\n"
        " for name in names:\n"
        "  path=os.path.join(top,name)\n"
        "  try: open(path,'rb').close();print(path)\n"
        "  except OSError: pass"
    )
    words = [sys.executable, "-I", "-S", "-c", code, str(root), str(owner.user), str(owner.group)]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()


def chosen() -> FileOwner:
    user = choose_user()
    assert user.owner is not None
    return user.owner


async def test_the_broker_of_a_hub_that_is_root_is_not_root_and_serves(site):
    assert site.users() == set(chosen())
    assert site.powers() == 0
    assert await site.reaches(site.issue("demo--a"))
    assert "runs_as_root" not in site.log.getvalue()


async def test_the_brokers_user_reads_its_own_copies_and_no_key_of_the_ca(site, tmp_path):
    await site.reaches(site.issue("demo--a"))
    seen = readable_by(chosen(), tmp_path)
    assert not [name for name in seen if "pki" in name]
    assert {path.name for path in site.folder.iterdir()} >= {"server.key", "acl", "mosquitto.conf", "ca.pem"}
    secrets = [path.read_bytes() for path in site.pki.glob("*.key") if path.name != "server.key"]
    assert secrets
    given = b"".join(path.read_bytes() for path in site.folder.iterdir())
    assert not [secret for secret in secrets if secret in given]
    for path in (site.folder, *site.folder.iterdir()):
        assert (path.stat().st_uid, path.stat().st_mode & PRIVATE) == (chosen().user, 0), path


async def test_a_broker_that_dies_or_is_restarted_is_never_root_again(site):
    for _ in range(2):
        before = site.broker.pid
        await site.broker.restart()
        assert site.broker.pid not in (before, None)
        assert site.users() == set(chosen())
    assert await site.reaches(site.issue("demo--a"))


async def test_the_running_broker_trusts_a_ca_that_is_added_and_forgets_the_old_one_after_its_restart(site):
    old, before = site.issue("demo--a"), site.broker.pid
    assert await site.reaches(old)
    site.authorities.begin_rotation(utc_now())
    await site.broker.add_authorities()
    new = site.issue("demo--a")
    assert await site.reaches(new)
    assert await site.reaches(old)
    assert site.broker.pid == before
    site.authorities.finish_rotation()
    site.authorities.ensure_server((), utc_now())
    await site.broker.restart()
    new.load_verify_locations(site.authorities.trusted_file)
    old.load_verify_locations(site.authorities.trusted_file)
    assert await site.reaches(new)
    assert not await site.reaches(old)
    assert len(list(site.folder.glob("????????.0"))) == 1


async def test_a_websocket_listener_trusts_an_added_ca_too(tmp_path):
    port = find_free_port()
    site = Site(tmp_path, websocket_port=port)
    await site.start()
    route = LinkRoute(websocket=f"wss://127.0.0.1:{port}/mqtt")
    assert await site.reaches(site.issue("demo--a"), route)
    site.authorities.begin_rotation(utc_now())
    await site.broker.add_authorities()
    assert await site.reaches(site.issue("demo--a"), route)
    assert site.users() == set(chosen())
    await site.stop()


async def test_a_broker_on_a_port_below_1024_serves_with_that_one_power(tmp_path):
    site = Site(tmp_path, port=LOW_PORT)
    await site.start()
    assert site.users() == set(chosen())
    assert site.powers() == 1 << 10  # CAP_NET_BIND_SERVICE
    assert await site.reaches(site.issue("demo--a"))
    await site.stop()


async def test_queues_of_an_earlier_version_are_the_brokers_own_afterwards(tmp_path):
    as_root = Site(tmp_path, user=BrokerUser("root"))
    await as_root.start()
    assert as_root.users() == {0}
    link = await MqttTransport.connect(
        "127.0.0.1", as_root.broker.port, "demo--a", as_root.issue("demo--a"), session_expiry_s=600
    )
    await link.close()
    await as_root.stop()
    queues = tmp_path / "broker" / "mosquitto.db"
    assert queues.stat().st_uid == 0
    site = Site(tmp_path)
    await site.start()
    assert queues.stat().st_uid == chosen().user
    again = await MqttTransport.connect(
        "127.0.0.1", site.broker.port, "demo--a", site.issue("demo--a"), session_expiry_s=600
    )
    assert again.session_present  # what stood in them was read
    await again.close()
    await site.stop()
    assert queues.stat().st_uid == chosen().user


async def test_links_that_a_broken_broker_leaves_in_its_folder_give_it_nothing(tmp_path):
    secret, other = tmp_path / "secret", tmp_path / "other"
    for path in (secret, other):
        path.write_text("of root alone")
        path.chmod(0o600)
    site = Site(tmp_path)
    (site.folder / "mosquitto.db.new").symlink_to(secret)
    (site.folder / "acl").symlink_to(secret)
    (site.folder / "ca").symlink_to("/etc")
    os.link(other, site.folder / "hard")
    os.mkfifo(site.folder / "server.key")
    await site.start()
    for path in (secret, other):
        assert (path.stat().st_uid, path.read_text()) == (0, "of root alone")
    assert stat.S_ISREG((site.folder / "server.key").lstat().st_mode)
    assert not (site.folder / "acl").is_symlink()
    await site.stop()


IN_A_NAMESPACE = """
import asyncio, sys
from pathlib import Path
from tests.live.broker.test_broker_user import Site

async def main():
    site = Site(Path(sys.argv[1]))
    await site.start()
    print(*site.users(), await site.reaches(site.issue("demo--a")))
    await site.broker.restart()
    await site.stop()
    print(site.log.getvalue())

asyncio.run(main())
"""


def test_where_files_cannot_be_given_to_another_user_the_broker_stays_root_with_one_warning(tmp_path):
    words = ["unshare", "--user", "--map-root-user", sys.executable, "-c", IN_A_NAMESPACE, str(tmp_path)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("0 True\n"), done.stdout
    assert done.stdout.count("runs_as_root") == 1
    assert "its folder cannot be given to mosquitto" in done.stdout


async def test_a_program_that_the_other_user_cannot_run_is_one_clear_line(tmp_path):
    (tmp_path / "mine").mkdir(mode=0o700)
    program = shutil.copy("/usr/sbin/mosquitto", tmp_path / "mine" / "mosquitto")
    settings = BrokerSettings(tmp_path, port=0, program=str(program))
    pair = CertificateFiles(tmp_path / "server.pem", tmp_path / "server.key")
    for path in (pair.certificate, pair.key, tmp_path / "ca.pem"):
        path.write_text("")
    broker = Broker(settings, BrokerTls(pair, tmp_path / "ca.pem"), JsonLog(io.StringIO()))
    with pytest.raises(ExitError, match=r"cannot be run by user \d+: Permission denied"):
        await broker.start()
    await broker.stop()

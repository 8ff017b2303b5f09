"""Actors for tests of publishing: a hub's repository, a person with offline keys, and a device that reads from disk."""

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

from securesystemslib.signer import CryptoSigner, Key
from tuf.api.exceptions import DownloadHTTPError, DownloadLengthMismatchError

from cloud_hub.repository.publish import Published, publish_policy
from cloud_hub.repository.repository import Repository
from cloud_hub.repository.signing_keys import ALWAYS, OnlineKeys
from cloud_hub.security.hub_keys import HubCard
from models.signing import operations
from models.signing.keyring import Cost, Keyring
from models.signing.request import (
    Request,
    State,
    dump_request,
    dump_state,
    encode,
    load_request,
    load_state,
    missing,
    sign,
)
from models.signing.roles import FLEET, Fleet
from models.update.client import Errand, Fetcher, Session, Source
from models.update.partial_download import Part
from tests import ROOT

NOW = datetime.now(UTC).replace(microsecond=0)
PASSPHRASE = b"a long enough passphrase"
CHEAP = Cost(n=16)
CARD = HubCard("hub-1", "local", b"h" * 32, b"s" * 32)
POLICY = ROOT.joinpath("policies", "templates", "demo.toml").read_bytes()


def days(count: float) -> datetime:
    return NOW + timedelta(days=count)


def policy(version: int) -> bytes:
    return POLICY.replace(b"\nversion = 1", f"\nversion = {version}".encode())


class Hub:
    """`folder/hub/repository` and `folder/hub/online`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.repository = Repository(folder / "repository", OnlineKeys(folder / "online"))

    def export(self, *, hold: tuple[str, ...] = (), new: tuple[str, ...] = ()) -> State:
        """As it arrives at the keys: through its file."""
        self.repository.online.ensure((*ALWAYS, *hold))
        for role in new:
            self.repository.online.renew(role)
        return load_state(dump_state(self.repository.state()))

    def install(self, request: Request, now: datetime = NOW) -> None:
        self.repository.install(carried(request), now)

    def publish(self, version: int, now: datetime = NOW) -> Published:
        return publish_policy(self.repository, policy(version), now)

    def copy(self, folder: Path) -> "Hub":
        """Everything of it, as a thief or a backup has it."""
        shutil.copytree(self.folder, folder, symlinks=True)
        return Hub(folder)


class Holder:
    """A person who holds a folder of offline keys."""

    def __init__(self, folder: Path) -> None:
        self.ring = Keyring(folder, CHEAP)

    @classmethod
    def begin(cls, folder: Path, state: State, fleet: Fleet = FLEET, families: tuple[str, ...] = ("echo",)) -> Request:
        """The first keys of a fleet, and the first request, signed."""
        holder = cls(Keyring.create(folder, CHEAP).folder)
        request = operations.begin(state, operations.Plan(fleet, families), holder.draw, NOW)
        sign(request, holder.ring.save(lambda: PASSPHRASE))
        holder.ring.keep_root(encode(request.changes["root"]))
        return request

    def draw(self, role: str) -> Key:
        return self.ring.draw(role).public_key

    def rotate(self, state: State, *roles: str, drop: tuple[str, ...] = (), now: datetime = NOW) -> Request:
        request = operations.rotate(state, operations.Rotation(roles, frozenset(drop)), self.draw, now)
        sign(request, self.ring.save(lambda: PASSPHRASE))
        return self.sign(request)

    def sign(self, request: Request) -> Request:
        """With every key of the folder that is of use."""
        useful = frozenset[str]().union(*(missing(request, role)[0] for role in request.changes))
        sign(request, self.ring.unlock(useful, lambda _name: PASSPHRASE))
        return request

    def key(self, name: str) -> CryptoSigner:
        found = next(key for key in self.ring.files() if key.name == name)
        return self.ring.unlock(frozenset({found.keyid}), lambda _name: PASSPHRASE)[0]

    def give(self, folder: Path, *names: str) -> "Holder":
        """Move key files to another person, with a copy of what is public."""
        folder.mkdir()
        for name in names:
            shutil.move(self.ring.folder / f"{name}.key", folder)
        return Holder(folder)


def carried(request: Request) -> Request:
    """A signing request after a round trip through its file, as between two machines."""
    return load_request(dump_request(request))


class FolderFetcher(Fetcher):
    """Fetcher that reads a folder as a mirror would serve it."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def download_bytes(self, url: str, max_length: int) -> bytes:
        path = self.folder / url
        if not path.is_file():
            raise DownloadHTTPError(f"{url}: not found", 404)
        data = path.read_bytes()
        if len(data) > max_length:
            raise DownloadLengthMismatchError(url)
        return data

    def download_part(self, url: str, part: Part, length: int) -> None:
        part.append(self.download_bytes(url, length))


class Device:
    """Update client over a folder of its own; `reads` is the repository that it is shown."""

    def __init__(self, folder: Path, reads: Hub) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.root = reads.repository.root()
        self.reads = reads

    def poll(self, now: datetime = NOW) -> Session:
        """Refused if what it is shown is not to be believed."""
        fetcher = FolderFetcher(self.reads.folder / "repository")
        source = Source("metadata/", "targets", self.root)
        return Errand(self.folder, source, fetcher, now.timestamp).refresh()

    def sees(self, path: str, now: datetime = NOW) -> int:
        """The version of a target; 0 = nobody lists it."""
        found = self.poll(now).approved(path)
        return int(found.info.custom["version"]) if found else 0

"""Actors for tests of publishing: a hub's repository, a person with offline keys, and a device that reads from disk."""

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

from securesystemslib.signer import CryptoSigner, Key
from tuf.api.exceptions import DownloadHTTPError, DownloadLengthMismatchError

from cloud_hub.repository.publish import PublishResult, publish_policy
from cloud_hub.repository.repository import Repository
from cloud_hub.repository.signing_keys import DEFAULT_ROLES, OnlineKeys
from cloud_hub.security.hub_keys import HubCard
from models.signing import ceremony
from models.signing.keyring import Keyring, ScryptCost
from models.signing.request import (
    RepositoryState,
    SigningRequest,
    add_signatures,
    dump_request,
    dump_state,
    encode_metadata,
    load_request,
    load_state,
    missing_signatures,
)
from models.signing.roles import FLEET_THRESHOLDS, KeyThresholds
from models.update.client import RepositorySource, ResumingFetcher, TrustedSession, UpdateClient
from models.update.partial_download import PartialDownload
from tests import ROOT

NOW = datetime.now(UTC).replace(microsecond=0)
PASSPHRASE = b"a long enough passphrase"
CHEAP = ScryptCost(n=16)
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

    def export(self, *, hold: tuple[str, ...] = (), new: tuple[str, ...] = ()) -> RepositoryState:
        """As it arrives at the keys: through its file."""
        self.repository.online.ensure_keys((*DEFAULT_ROLES, *hold))
        for role in new:
            self.repository.online.add_key(role)
        return load_state(dump_state(self.repository.read_state()))

    def install(self, request: SigningRequest, now: datetime = NOW) -> None:
        self.repository.install_request(carried(request), now)

    def publish(self, version: int, now: datetime = NOW) -> PublishResult:
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
    def begin(
        cls,
        folder: Path,
        state: RepositoryState,
        fleet: KeyThresholds = FLEET_THRESHOLDS,
        families: tuple[str, ...] = ("echo",),
    ) -> SigningRequest:
        """The first keys of a fleet, and the first request, signed."""
        holder = cls(Keyring.create(folder, CHEAP).folder)
        request = ceremony.begin_repository(state, ceremony.RepositoryPlan(fleet, families), holder.draw, NOW)
        add_signatures(request, holder.ring.save_keys(lambda: PASSPHRASE))
        holder.ring.keep_root(encode_metadata(request.changes["root"]))
        return request

    def draw(self, role: str) -> Key:
        return self.ring.draw_key(role).public_key

    def rotate(
        self, state: RepositoryState, *roles: str, drop: tuple[str, ...] = (), now: datetime = NOW
    ) -> SigningRequest:
        request = ceremony.rotate_keys(state, ceremony.KeyRotation(roles, frozenset(drop)), self.draw, now)
        add_signatures(request, self.ring.save_keys(lambda: PASSPHRASE))
        return self.sign(request)

    def sign(self, request: SigningRequest) -> SigningRequest:
        """With every key of the folder that is of use."""
        useful = frozenset[str]().union(*(missing_signatures(request, role)[0] for role in request.changes))
        add_signatures(request, self.ring.unlock_keys(useful, lambda _name: PASSPHRASE))
        return request

    def key(self, name: str) -> CryptoSigner:
        found = next(key for key in self.ring.key_files() if key.name == name)
        return self.ring.unlock_keys(frozenset({found.keyid}), lambda _name: PASSPHRASE)[0]

    def give(self, folder: Path, *names: str) -> "Holder":
        """Move key files to another person, with a copy of what is public."""
        folder.mkdir()
        for name in names:
            shutil.move(self.ring.folder / f"{name}.key", folder)
        return Holder(folder)


def carried(request: SigningRequest) -> SigningRequest:
    """A signing request after a round trip through its file, as between two machines."""
    return load_request(dump_request(request))


class FolderFetcher(ResumingFetcher):
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

    def download_part(self, url: str, part: PartialDownload, length: int) -> None:
        part.append(self.download_bytes(url, length))


class Device:
    """Update client over a folder of its own; `reads` is the repository that it is shown."""

    def __init__(self, folder: Path, reads: Hub) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.root = reads.repository.read_root()
        self.reads = reads

    def poll(self, now: datetime = NOW) -> TrustedSession:
        """Refused if what it is shown is not to be believed."""
        fetcher = FolderFetcher(self.reads.folder / "repository")
        source = RepositorySource("metadata/", "targets", self.root)
        return UpdateClient(self.folder, source, fetcher, now.timestamp).refresh()

    def sees(self, path: str, now: datetime = NOW) -> int:
        """The version of a target; 0 = nobody lists it."""
        found = self.poll(now).approved_target(path)
        return int(found.info.custom["version"]) if found else 0

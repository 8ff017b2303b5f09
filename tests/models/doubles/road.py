"""Update client harness: repository, mirror, downloader and update client of one device, with a settable clock."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest

from models.update.client import RefusedError, RepositorySource, TrustedSession, UpdateClient
from models.update.downloader import ResumingFetcher, TransferClock
from models.update.floors import FloorDatabase
from tests.models.doubles.mirror import Mirror
from tests.models.doubles.repository import NOW, Repository
from wire.http.client import TransferLimits
from wire.protocol.rollout import InstallFailure

DAY_S = 86400.0


class UpdateClientHarness:
    """One device's update client; each call makes a new client, as after a restart. `at_s`: the device's wall clock."""

    def __init__(self, folder: Path, repo: Repository, mirror: Mirror, least_ms: int = 0) -> None:
        self.folder = folder
        self.repo = repo
        self.mirror = mirror
        self.least_ms = least_ms
        self.at_s = NOW.timestamp()
        self.naps: list[float] = []
        self.limits = TransferLimits()
        self.root = repo.trusted_root
        self.fetcher = ResumingFetcher()
        folder.mkdir(exist_ok=True)

    def errand(self) -> UpdateClient:
        source = RepositorySource(f"{self.mirror.url}metadata/", f"{self.mirror.url}targets/", self.root, self.least_ms)
        self.close()
        self.fetcher = ResumingFetcher(self.limits, hands=TransferClock(sleep=self.naps.append))
        return UpdateClient(self.folder, source, self.fetcher, lambda: self.at_s)

    def close(self) -> None:
        self.fetcher.close()

    def refresh(self) -> TrustedSession:
        return self.errand().refresh()

    def refused(self, failure: InstallFailure, words: str = "") -> None:
        with pytest.raises(RefusedError, match=words or None) as caught:
            self.refresh()
        assert caught.value.refusal.failure is failure, caught.value

    def version(self, role: str) -> int:
        """Version of a role's cached metadata; 0 if there is none."""
        try:
            found: int = json.loads((self.folder / f"{quote(role, '')}.json").read_bytes())["signed"]["version"]
        except FileNotFoundError:
            return 0
        return found

    def versions(self) -> dict[str, int]:
        return {path.stem: self.version(path.stem) for path in sorted(self.folder.glob("*.json"))}

    def floor(self, name: str) -> int:
        with FloorDatabase(self.folder) as db:
            floor = db.read_floors().get(name)
        return floor.version if floor else 0

    def lose_cache(self, *, zeroed: bool) -> None:
        """Lose cached files as a power cut may do to files that were never synced."""
        for path in [*self.folder.rglob("*.json")]:
            if zeroed and not path.is_symlink():
                path.write_bytes(b"")
            else:
                path.unlink()


@contextmanager
def open_update_client(folder: Path, repo: Repository | None = None) -> Iterator[UpdateClientHarness]:
    """The harness with a running mirror; closed at the end."""
    repo = repo or Repository()
    with Mirror(repo.files) as mirror:
        road = UpdateClientHarness(folder, repo, mirror)
        yield road
        road.close()

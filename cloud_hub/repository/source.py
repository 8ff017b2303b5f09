"""Another hub's update repository as a source of model versions: where trust in it begins, and what it lists.

Rule: TUF says which bytes are meant, and a root hash given by a person says whose TUF. The key of that hub's operator
opens the hub parts and proves nothing.
"""

import shutil
import ssl
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from tuf.api.exceptions import DownloadHTTPError
from tuf.api.metadata import TargetFile

from models.signing.review import REVOKED_FIELD
from models.signing.roles import EDGE_FIELD, HUB_FIELD, SIZE_FIELD, hub_path, model_path
from models.update.client import UPDATE_ERRORS, RepositorySource, ResumingFetcher, TrustedSession, UpdateClient
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.files import write_private_file

MAX_FIRST_ROOTS = 256  # of a repository that are looked through for the one that a person named
MAX_ROOT_BYTES = 512_000
MAX_DESCRIPTION_BYTES = 1 << 20  # of a hub part
_ROOT_FILE = "first.root"
_MAX_VERSION_DIGITS = 15


@dataclass(frozen=True)
class VersionSource:
    """Another hub's update repository: its address above `metadata/`, `targets/` and `parts/`, and what opens it.

    `trust`: folder for what is known of it. `token`: of an operator of that whole hub, for hub parts; "" = none.
    `context`: TLS of an own CA.
    """

    url: str
    trust: Path
    token: str = ""
    context: ssl.SSLContext | None = None

    def trust_root(self, root_sha256: str) -> None:
        """Begin trust with the root of this SHA-256 (hex), which the repository must have.

        What was known of another root is forgotten. ExitError(HUB) if nobody answers, (CREDENTIALS) if the repository
        has no such root, (DISK) if it cannot be kept.
        """
        if sha256(self.read_root()).hexdigest() == root_sha256:
            return
        data = self._find_root(root_sha256)
        shutil.rmtree(self.trust, ignore_errors=True)
        try:
            self.trust.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ExitError(ExitCode.DISK, f"{self.trust}: {error.strerror}") from None
        write_private_file(self.trust / _ROOT_FILE, data)

    def read_root(self) -> bytes:
        """Return the root that trust begins with, b"" before `trust_root`."""
        try:
            return (self.trust / _ROOT_FILE).read_bytes()
        except OSError:
            return b""

    def create_client(self, fetcher: ResumingFetcher) -> UpdateClient:
        """Return an update client of this repository. ExitError(CREDENTIALS) before `trust_root`."""
        root = self.read_root()
        if not root:
            why = "say whose it is by --root and the SHA-256 of its root, which `skerry repository status` prints there"
            raise ExitError(ExitCode.CREDENTIALS, f"{self.url} is not known here yet: {why}")
        return UpdateClient(
            self.trust, RepositorySource(f"{self.url}/metadata/", f"{self.url}/targets/", root), fetcher
        )

    def _find_root(self, root_sha256: str) -> bytes:
        fetcher = ResumingFetcher(context=self.context)
        try:
            for version in range(1, MAX_FIRST_ROOTS + 1):
                data = fetcher.download_bytes(f"{self.url}/metadata/{version}.root.json", MAX_ROOT_BYTES)
                if sha256(data).hexdigest() == root_sha256:
                    return data
        except DownloadHTTPError:  # there is no further root
            pass
        except UPDATE_ERRORS as error:
            raise ExitError(ExitCode.HUB, f"{self.url}: {error}") from None
        finally:
            fetcher.close()
        why = "has no root with this SHA-256; `skerry repository status` on that hub prints it"
        raise ExitError(ExitCode.CREDENTIALS, f"{self.url} {why}")


@dataclass(frozen=True)
class ListedVersion:
    """A version as a repository lists it; `hub` None: an older bundle, with its hub files inside."""

    model: str
    edge: TargetFile
    hub: TargetFile | None

    @property
    def sha256(self) -> str:
        """SHA-256 (hex) of the packed bundle."""
        return str(self.edge.hashes["sha256"])

    @property
    def size_bytes(self) -> int:
        """Size of the packed bundle and of all files of the hub part."""
        return int(self.edge.length) + (int(self.hub.custom[SIZE_FIELD]) if self.hub else 0)


def find_version(session: TrustedSession, model: str) -> ListedVersion:
    """Find both targets of a version such as `digits@7`.

    ExitError(NOT_FOUND) if it is not listed, (CHECK_FAILED) if it is revoked or its halves do not name each other,
    (USAGE) if that names no version.
    """
    family, _, version = model.partition("@")
    if not family or not (version.isascii() and version.isdecimal() and len(version) <= _MAX_VERSION_DIGITS):
        raise ExitError(ExitCode.USAGE, f"{model!r}: name one version, as in digits@7")
    path = model_path(family, int(version))
    edge = session.approved_target(path)
    if edge is None:
        raise ExitError(ExitCode.NOT_FOUND, f"{model} is not published there")
    if edge.info.custom.get(REVOKED_FIELD):
        raise ExitError(ExitCode.CHECK_FAILED, f"{model} is revoked there: nobody may run it")
    if HUB_FIELD not in edge.info.custom:
        return ListedVersion(model, edge.info, None)
    hub = session.approved_target(hub_path(path))
    if hub is None or not _are_halves(edge.info, hub.info):
        raise ExitError(
            ExitCode.CHECK_FAILED, f"{model}: the bundle and the hub part listed there do not belong together"
        )
    return ListedVersion(model, edge.info, hub.info)


def _are_halves(edge: TargetFile, hub: TargetFile) -> bool:
    """Tell whether two targets name each other, and the hub part says how big it is."""
    digests = edge.hashes.get("sha256"), hub.hashes.get("sha256")
    named = (hub.custom.get(EDGE_FIELD), edge.custom.get(HUB_FIELD)) == digests and None not in digests
    return named and isinstance(hub.custom.get(SIZE_FIELD), int) and hub.length <= MAX_DESCRIPTION_BYTES

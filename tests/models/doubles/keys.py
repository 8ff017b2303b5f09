"""TUF keys in memory, offline and online, and a repository that was created with them."""

from datetime import UTC, datetime

from securesystemslib.signer import CryptoSigner, Key
from tuf.api.metadata import Metadata, TargetFile, Targets

from models.signing import ceremony
from models.signing.keyring import build_public_key
from models.signing.request import RepositoryState, SigningRequest, add_signatures, build_successor
from models.signing.roles import FLEET_THRESHOLDS, KeyThresholds, expiry_for

NOW = datetime.now(UTC).replace(microsecond=0)


class MemoryKeyring:
    """Generates keys and keeps them; signs with all of them."""

    def __init__(self) -> None:
        self.signers: list[CryptoSigner] = []
        self._numbers: dict[str, int] = {}

    def draw(self, role: str) -> Key:
        """A new key for a role."""
        self.signers.append(CryptoSigner.generate_ed25519())
        self._numbers[role] = self._numbers.get(role, 0) + 1
        raw = bytes.fromhex(self.signers[-1].public_key.keyval["public"])
        return build_public_key(raw, f"{role}-{self._numbers[role]}")

    def sign(self, request: SigningRequest) -> SigningRequest:
        add_signatures(request, self.signers)
        return request


def begin_repository(memory: MemoryKeyring, fleet: KeyThresholds = FLEET_THRESHOLDS) -> SigningRequest:
    """The signed request that creates a repository."""
    online = {role: memory.draw(role) for role in ("snapshot", "timestamp", "keys")}
    state = RepositoryState(online)  # type: ignore[arg-type]
    return memory.sign(ceremony.begin_repository(state, ceremony.RepositoryPlan(fleet, ("echo",)), memory.draw, NOW))


def installed_state(memory: MemoryKeyring) -> RepositoryState:
    """State of a hub after it installed that request."""
    return install_request(memory, begin_repository(memory))


def install_request(memory: MemoryKeyring, request: SigningRequest) -> RepositoryState:
    """State after a first request is installed; the hub's own role is signed by it."""
    targets = {role: metadata for role, metadata in request.changes.items() if isinstance(metadata.signed, Targets)}
    keys = Metadata(Targets(expires=expiry_for("keys", NOW)))
    for signer in memory.signers:
        keys.sign(signer, append=True)
    return RepositoryState(request.state.online, (request.changes["root"],), {**targets, "keys": keys})  # type: ignore[arg-type]


def targets_of(state: RepositoryState, role: str, *files: tuple[str, int]) -> SigningRequest:
    """A request that adds files to a delegated role, not signed yet."""
    fresh = build_successor(state.base[role])
    for path, version in files:
        info = TargetFile.from_data(path, path.encode(), ["sha256"])
        info.unrecognized_fields["custom"] = {"version": version}
        fresh.signed.targets[path] = info
    return SigningRequest(state, {role: fresh})

"""TUF keys in memory, offline and online, and a repository that was created with them."""

from datetime import UTC, datetime

from securesystemslib.signer import CryptoSigner, Key
from tuf.api.metadata import Metadata, TargetFile, Targets

from models.signing import operations
from models.signing.keyring import public_key
from models.signing.request import Request, State, sign, successor
from models.signing.roles import FLEET, Fleet, expiry

NOW = datetime.now(UTC).replace(microsecond=0)


class Memory:
    """Generates keys and keeps them; signs with all of them."""

    def __init__(self) -> None:
        self.signers: list[CryptoSigner] = []
        self._numbers: dict[str, int] = {}

    def draw(self, role: str) -> Key:
        """A new key for a role."""
        self.signers.append(CryptoSigner.generate_ed25519())
        self._numbers[role] = self._numbers.get(role, 0) + 1
        raw = bytes.fromhex(self.signers[-1].public_key.keyval["public"])
        return public_key(raw, f"{role}-{self._numbers[role]}")

    def sign(self, request: Request) -> Request:
        sign(request, self.signers)
        return request


def begun(memory: Memory, fleet: Fleet = FLEET) -> Request:
    """The signed request that creates a repository."""
    online = {role: memory.draw(role) for role in ("snapshot", "timestamp", "keys")}
    state = State(online)  # type: ignore[arg-type]
    return memory.sign(operations.begin(state, operations.Plan(fleet, ("echo",)), memory.draw, NOW))


def standing(memory: Memory) -> State:
    """State of a hub after it installed that request."""
    return installed(memory, begun(memory))


def installed(memory: Memory, request: Request) -> State:
    """State after a first request is installed; the hub's own role is signed by it."""
    targets = {role: metadata for role, metadata in request.changes.items() if isinstance(metadata.signed, Targets)}
    keys = Metadata(Targets(expires=expiry("keys", NOW)))
    for signer in memory.signers:
        keys.sign(signer, append=True)
    return State(request.state.online, (request.changes["root"],), {**targets, "keys": keys})  # type: ignore[arg-type]


def targets_of(state: State, role: str, *files: tuple[str, int]) -> Request:
    """A request that adds files to a delegated role, not signed yet."""
    fresh = successor(state.base[role])
    for path, version in files:
        info = TargetFile.from_data(path, path.encode(), ["sha256"])
        info.unrecognized_fields["custom"] = {"version": version}
        fresh.signed.targets[path] = info
    return Request(state, {role: fresh})

"""The hub's state folder: which file is what. Folders are 0700, files 0600: nobody but the hub's user reads them."""

from dataclasses import dataclass
from pathlib import Path

from wire.process.exit_codes import Exit, ExitError
from wire.process.files import read_private


@dataclass(frozen=True)
class StateDir:
    """Paths below one root. Only `prepare` touches the disk."""

    root: Path

    @property
    def devices(self) -> Path:
        return self.root / "devices.db"

    @property
    def store(self) -> Path:
        return self.root / "hub.db"

    @property
    def access(self) -> Path:
        """Keys of tenants, as digests."""
        return self.root / "access.db"

    @property
    def audit(self) -> Path:
        """Who changed what over the web API, and who was refused."""
        return self.root / "audit.jsonl"

    @property
    def orders(self) -> Path:
        """What people ordered for good: notices that deny all, floors of policies."""
        return self.root / "orders.json"

    @property
    def ledger(self) -> Path:
        """The log of the devices' ledger heads, and what they said they have spent."""
        return self.root / "ledger.db"

    @property
    def versions(self) -> Path:
        """Which device speaks which version of a model, and which versions are retired."""
        return self.root / "versions.db"

    @property
    def rollouts(self) -> Path:
        """Rollouts: plans, how far each has come, every device of them, and their history."""
        return self.root / "rollouts.db"

    @property
    def broker(self) -> Path:
        return self.root / "broker"

    @property
    def certificates(self) -> Path:
        return self.root / "pki"

    @property
    def keys(self) -> Path:
        return self.root / "keys"

    @property
    def online(self) -> Path:
        """The hub's own signing keys of the update repository."""
        return self.keys / "online"

    @property
    def repository(self) -> Path:
        """The update repository: what devices and mirrors may read."""
        return self.root / "repository"

    @property
    def token_file(self) -> Path:
        return self.root / "admin.token"

    @property
    def running(self) -> Path:
        """JSON of the running hub's addresses; stale once its lock is free."""
        return self.root / "api.json"

    def prepare(self) -> "StateDir":
        """Make the folders (0700) at first start; ExitError(DISK) if they cannot be made."""
        for folder in (self.root, self.broker, self.certificates, self.keys):
            private_folder(folder)
        return self


def private_folder(folder: Path) -> None:
    """Make a folder that nobody else may enter; ExitError(DISK) otherwise."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
    except OSError as error:
        raise ExitError(Exit.DISK, f"cannot make {folder}: {error.strerror}; choose another state folder") from None


def read(path: Path) -> bytes:
    """A secret's bytes; ExitError(CREDENTIALS) if others may read it."""
    return read_private(path)

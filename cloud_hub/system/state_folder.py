"""Paths and permissions of the hub's state folder. Folders are 0700, files 0600: only the hub's user can read them."""

from dataclasses import dataclass
from pathlib import Path

from wire.process.exit_codes import ExitCode, ExitError


@dataclass(frozen=True)
class StateDir:
    """Paths below the root of the state folder. Only `prepare` touches the disk."""

    root: Path

    @property
    def devices(self) -> Path:
        return self.root / "devices.db"

    @property
    def store(self) -> Path:
        return self.root / "hub.db"

    @property
    def access(self) -> Path:
        """API keys of tenants, as digests."""
        return self.root / "access.db"

    @property
    def audit(self) -> Path:
        """Audit log: who changed what over the web API, and who was refused."""
        return self.root / "audit.jsonl"

    @property
    def orders(self) -> Path:
        """Standing orders of administrators: deny notices and minimum policy versions."""
        return self.root / "orders.json"

    @property
    def ledger(self) -> Path:
        """Transparency log of the devices' ledger heads, and their reported spending."""
        return self.root / "ledger.db"

    @property
    def versions(self) -> Path:
        """Which device uses which model version, and which versions are retired."""
        return self.root / "versions.db"

    @property
    def rollouts(self) -> Path:
        """Rollouts: plans, progress, devices and history."""
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
        """Online signing keys of the update repository."""
        return self.keys / "online"

    @property
    def repository(self) -> Path:
        """The update repository, readable by devices and mirrors."""
        return self.root / "repository"

    @property
    def token_file(self) -> Path:
        return self.root / "admin.token"

    @property
    def running(self) -> Path:
        """JSON of the running hub's addresses; stale if its lock is free."""
        return self.root / "api.json"

    def prepare(self) -> "StateDir":
        """Make the folders (0700) at first start; ExitError(DISK) if they cannot be made."""
        for folder in (self.root, self.broker, self.certificates, self.keys):
            make_private_folder(folder)
        return self


def make_private_folder(folder: Path) -> None:
    """Make a folder of mode 0700. ExitError(DISK) otherwise."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
    except OSError as error:
        raise ExitError(ExitCode.DISK, f"cannot make {folder}: {error.strerror}; choose another state folder") from None

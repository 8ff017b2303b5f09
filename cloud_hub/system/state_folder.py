"""Paths and permissions of the hub's state folder; `database.parts` names its databases.

Folders are 0700, files 0600: only the hub's user can read them.
"""

from dataclasses import dataclass
from pathlib import Path

from wire.process.exit_codes import ExitCode, ExitError


@dataclass(frozen=True)
class StateDir:
    """Paths below the root of the state folder. Only `prepare` touches the disk."""

    root: Path

    @property
    def audit(self) -> Path:
        """Audit log: who changed what over the web API, and who was refused."""
        return self.root / "audit.jsonl"

    @property
    def orders(self) -> Path:
        """Standing orders of administrators, as hubs kept them before they had tables for them."""
        return self.root / "orders.json"

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
    def sessions(self) -> Path:
        """Sessions of browsers that are signed in."""
        return self.root / "sessions.json"

    @property
    def sources(self) -> Path:
        """What is known of other hubs' update repositories, from which versions are fetched."""
        return self.root / "sources"

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

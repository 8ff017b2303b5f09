"""The user that a hub's broker runs as. Rule: it is never root where the hub may choose another one."""

import os
import pwd
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from wire.process.files import FileOwner

_UNPRIVILEGED = ("mosquitto", "nobody")  # the first that this machine has
_STATUS = Path("/proc/self/status")
_NEEDED_CAPABILITIES = {"CAP_CHOWN": 0, "CAP_SETGID": 6, "CAP_SETUID": 7}  # bits of linux/capability.h


@dataclass(frozen=True)
class BrokerUser:
    """The user of the broker's process. `owner`: whose its files are; None = the hub's own user.

    `why_root`: why it is root all the same, "" if it is not.
    """

    name: str
    owner: FileOwner | None = None
    why_root: str = ""


def choose_user() -> BrokerUser:
    """Return the hub's own user, or, of a hub that is root, the first unprivileged one of this machine."""
    if os.geteuid() != 0:
        return use_own_user()
    missing = _find_missing_capabilities()
    if missing:
        return use_own_user(f"the hub has no {missing[0]}")
    for name in _UNPRIVILEGED:
        with suppress(KeyError):
            found = pwd.getpwnam(name)
            if found.pw_uid != 0:
                return BrokerUser(name, FileOwner(found.pw_uid, found.pw_gid))
    return use_own_user(f"this machine has no user {' or '.join(_UNPRIVILEGED)}")


def use_own_user(why_root: str = "") -> BrokerUser:
    """Return the user of this process."""
    try:
        return BrokerUser(pwd.getpwuid(os.geteuid()).pw_name, None, why_root)
    except KeyError:  # a container's arbitrary user
        return BrokerUser("nobody", None, why_root)


def give_folder(folder: Path, owner: FileOwner) -> None:
    """Make `owner` the owner of a folder and of the files in it, not of what lies deeper; OSError if it cannot be.

    Files with another name elsewhere, links and pipes stay as they are: a broker that was broken into could have put
    them there, so that root gives it a file that is not its own.
    """
    os.chown(folder, 0, 0)  # while its files are looked at, nobody else can change what is in it
    try:
        for path in folder.iterdir():
            _give_file(path, owner)
    finally:
        os.chown(folder, owner.user, owner.group)


def _give_file(path: Path, owner: FileOwner) -> None:
    found = path.lstat()
    if stat.S_ISREG(found.st_mode) and found.st_nlink == 1 and found.st_uid != owner.user:
        os.chown(path, owner.user, owner.group, follow_symlinks=False)


def _find_missing_capabilities() -> list[str]:
    """Names of the needed Linux capabilities that this process does not have: a container's root may lack them."""
    try:
        line = next(line for line in _STATUS.read_text().splitlines() if line.startswith("CapEff:"))
    except (OSError, StopIteration):
        return []
    held = int(line.split()[1], 16)
    return [name for name, bit in _NEEDED_CAPABILITIES.items() if not held >> bit & 1]

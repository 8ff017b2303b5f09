"""Makes a restored hub fit to serve: what it said after the backup is not known, and its numbers must not go back.

Rule: devices refuse whatever goes down. So what the hub signs by itself (timestamp, snapshot, its own roles) and its
HPKE key get numbers far beyond any that it can have given since. What only offline keys sign stays as it was.
"""

from datetime import datetime
from pathlib import Path

from cloud_hub.database.connection import open_part
from cloud_hub.database.parts import PARTS
from cloud_hub.repository.repository import Repository
from cloud_hub.repository.signing_keys import OnlineKeys
from cloud_hub.security.hub_keys import add_key_after_restore
from cloud_hub.system.state_folder import StateDir
from wire.process.exit_codes import ExitCode, ExitError


def prepare_restored_hub(folder: Path, now: datetime, *, on_server: bool) -> None:
    """Check a backup's databases and keys, bring them to this version's schema, and raise its numbers.

    `on_server`: the databases are not in it, and keys and repository are what the region's server says. ExitError
    (DATABASE) for what is damaged or of a newer version, (CREDENTIALS) for keys that are none.
    """
    state = StateDir(folder)
    if not state.keys.is_dir() or not state.certificates.is_dir():
        raise ExitError(ExitCode.DATABASE, "the backup holds no hub that can be used: its keys are missing")
    if on_server:
        return
    for part in PARTS:
        if (folder / part.file).exists():
            open_part(folder / part.file, part).dispose()
    add_key_after_restore(state.keys)
    Repository(state.repository, OnlineKeys(state.online)).raise_versions(now)

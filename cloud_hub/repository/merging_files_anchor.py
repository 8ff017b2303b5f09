"""Where a device's trust in the update repository begins: its newest root, and the address it is read from.

Rule: the newest root, not the first: whoever stole the keys of an old one must not be believed by a new device.
"""

import base64
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from cloud_hub.repository.merging_files_shelf import Shelf

PATH = "/tuf"  # below the hub's own address


@dataclass(frozen=True)
class Anchor:
    """`folder` of the repository, None for a hub without; `mirror`: base URL that devices are given instead of ours."""

    folder: Path | None = None
    mirror: str = ""

    def root(self) -> bytes:
        """As it is served; b"" before there is one."""
        roots = Shelf(self.folder).roots() if self.folder else []
        return roots[-1] if roots else b""

    def sha256(self) -> str:
        """What invites carry, hex; "" before there is a root."""
        root = self.root()
        return sha256(root).hexdigest() if root else ""

    def words(self, hub_url: str) -> dict[str, str]:
        """For the enrolment reply: `tuf_root`, base64 of the root's bytes, and `tuf_url`, above metadata/ and targets/.

        Both are "" before there is a root. A device compares the bytes with the hash in its invite; if root was
        rotated in between they differ, and it needs a new invite.
        """
        root = self.root()
        url = (self.mirror or hub_url + PATH) if root else ""
        return {"tuf_root": base64.b64encode(root).decode(), "tuf_url": url.rstrip("/")}


NOWHERE = Anchor()

"""The path below which a proxy serves a whole server, such as `/skerry`. Pure.

Rule: routes and handlers know paths without the prefix; what a caller is given has it, and what a caller sends may.
"""

import msgspec

PATTERN = r"^((/[A-Za-z0-9][A-Za-z0-9._~-]*)+)?$"


class PathPrefix(msgspec.Struct, frozen=True):
    """A prefix of paths. `text` begins with "/" and does not end with it; "" = none."""

    text: str = ""

    def add(self, path: str) -> str:
        """Return the path as a caller reaches it."""
        return f"{self.text}{path}"

    def strip(self, path: str) -> str:
        """Return the path as the server's routes have it; a path without the prefix as it is."""
        rest = path.removeprefix(self.text)
        if rest == path or (rest and rest[0] not in "/?"):
            return path
        return rest if rest.startswith("/") else f"/{rest}"

    @property
    def first_segment(self) -> str:
        """The first segment of the prefix; "" without one."""
        return self.text.partition("/")[2].partition("/")[0]

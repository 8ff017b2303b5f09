"""Debian's package index as apt has it on this machine: fields of every package, read once per process.

Facts such as sizes and sections, and one-line descriptions, each under the licence of its package (Debian main).
"""

import subprocess
from functools import cache
from typing import NamedTuple

from models.forge.data.types import ForgeError

_COMMAND = ("apt-cache", "dumpavail")


class Package(NamedTuple):
    """One binary package: `source` is the source package, `fields` what the index says of it, by field name."""

    name: str
    source: str
    section: str
    summary: str
    fields: dict[str, str]


@cache
def read_packages() -> tuple[Package, ...]:
    """Every package of the index with a section and a description, in order of their names.

    Raises ForgeError on a machine without apt, or whose index is empty (`apt-get update` fetches it).
    """
    try:
        found = subprocess.run(_COMMAND, capture_output=True, check=True, text=True, encoding="utf-8")
    except (OSError, subprocess.CalledProcessError) as error:
        raise ForgeError(f"the package index cannot be read ({error}): this set needs Debian's apt") from None
    packages = parse_index(found.stdout)
    if not packages:
        raise ForgeError("the package index is empty: run apt-get update")
    return packages


def parse_index(text: str) -> tuple[Package, ...]:
    """Packages of an index in its text form (Debian policy, chapter 5): one paragraph a package, fields by name."""
    found = {}
    for paragraph in text.split("\n\n"):
        fields = {
            name: value.strip()
            for name, colon, value in (line.partition(":") for line in paragraph.splitlines() if line[:1].strip())
            if colon
        }
        section = fields.get("Section", "").rpartition("/")[2]
        summary = fields.get("Description", "")
        if section and summary:
            name = fields["Package"]
            source = fields.get("Source", name).partition(" ")[0]
            found[name] = Package(name, source, section, summary, fields)
    return tuple(found[name] for name in sorted(found))

"""Wheels of one role, made from the whole wheel: `skerry-VERSION+agent`, `+hub` and `+demo`.

All four are builds of one distribution, so that pip replaces one by another and never has two beside each other. The
agent's has neither hub nor simulator in it, the hub's no simulator; hub and demo need what their extras name without
being asked. Equal input, equal bytes.
"""

import base64
import re
import zipfile
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

_MOMENT = (1980, 1, 1, 0, 0, 0)  # the earliest that a zip file can state


class RoleBuild(NamedTuple):
    """`leaves`: top-level packages that it has not; `takes`: the extras whose requirements become its own."""

    name: str
    leaves: frozenset[str]
    takes: frozenset[str]


BUILDS = (
    RoleBuild("agent", frozenset({"cloud_hub", "simulations"}), frozenset()),
    RoleBuild("hub", frozenset({"simulations"}), frozenset({"hub"})),
    RoleBuild("demo", frozenset(), frozenset({"hub", "forge", "sim", "demo"})),
)


def make_role_wheel(whole: Path, build: RoleBuild) -> Path:
    """Write the role's wheel beside the whole one, and return its path."""
    name, version, *tags = whole.stem.split("-")
    labelled = f"{version}+{build.name}"
    old, new = f"{name}-{version}.dist-info", f"{name}-{labelled}.dist-info"
    target = whole.with_name("-".join((name, labelled, *tags)) + ".whl")
    with zipfile.ZipFile(whole) as source:
        contents = {
            entry.replace(old, new, 1): source.read(entry)
            for entry in source.namelist()
            if entry.partition("/")[0] not in build.leaves and entry != f"{old}/RECORD"
        }
    contents[f"{new}/METADATA"] = _rewrite_metadata(contents[f"{new}/METADATA"].decode(), labelled, build).encode()
    top = f"{new}/top_level.txt"
    kept = [line for line in contents[top].decode().split() if line not in build.leaves]
    contents[top] = "".join(f"{line}\n" for line in kept).encode()
    record = [f"{path},sha256={_digest(data)},{len(data)}\n" for path, data in contents.items()]
    contents[f"{new}/RECORD"] = "".join([*record, f"{new}/RECORD,,\n"]).encode()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as written:
        for path, data in contents.items():
            entry = zipfile.ZipInfo(path, _MOMENT)
            entry.external_attr, entry.compress_type = 0o644 << 16, zipfile.ZIP_DEFLATED
            written.writestr(entry, data)
    return target


def _rewrite_metadata(text: str, version: str, build: RoleBuild) -> str:
    """The same with the build's version, and the requirements of the extras that it takes without their condition."""
    head, blank, body = text.partition("\n\n")
    lines = []
    for line in head.splitlines():
        found = re.fullmatch(r'(Requires-Dist: (\S+).*); extra == "([a-z]+)"', line)
        if line.startswith("Version: "):
            lines.append(f"Version: {version}")
        elif found is None or found[3] not in build.takes:
            lines.append(line)
        elif not found[2].startswith("skerry["):  # an extra that names further extras: those are taken too
            lines.append(found[1])
    return "\n".join(lines) + blank + body


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(sha256(data).digest()).rstrip(b"=").decode()

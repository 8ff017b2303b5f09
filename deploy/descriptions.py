"""A page of the repository as an index of packages shows it: without links to files that the index does not have.

No public address of the repository is known, so a link to a page becomes its path (`docs/running.md`), by which a
reader with a clone finds it. A picture is left out. What stands in code is left as it is.
"""

import posixpath
import re

_LINK = re.compile(r"(?P<picture>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)")
_CODE = re.compile(r"(^```.*?^```$|`[^`\n]+`)", re.MULTILINE | re.DOTALL)
_PLACEHOLDER = re.compile(r"\0(\d+)\0")


def make_links_plain(text: str, folder: str = "") -> str:
    """The page with each relative link as its path. `folder`: where the page lies, from the repository's root."""
    code: list[str] = []

    def set_aside(found: re.Match[str]) -> str:
        code.append(found[0])
        return f"\0{len(code) - 1}\0"

    def restore(found: re.Match[str]) -> str:
        return code[int(found[1])]

    def write_path(found: re.Match[str]) -> str:
        target = found["target"].partition("#")[0]
        if re.match(r"[a-z]+:", found["target"]):
            return found[0]
        if found["picture"]:
            return ""
        if not target:
            return found["text"]  # of this page: indexes make no anchors
        path = posixpath.normpath(posixpath.join(folder, target))
        return f"`{path}`" if found["text"] in {target, path, posixpath.basename(path)} else f"{found['text']} ({path})"

    plain = _LINK.sub(write_path, _CODE.sub(set_aside, text))
    return re.sub(r"\n{3,}", "\n\n", _PLACEHOLDER.sub(restore, plain))


def find_relative_links(text: str) -> list[str]:
    """Targets of links and pictures that no index can follow."""
    plain = _CODE.sub("", text)
    found = [each["target"] for each in _LINK.finditer(plain)]
    found += re.findall(r"(?:src|href)=\"([^\"]+)\"", plain)
    return [target for target in found if not re.match(r"[a-z]+:", target)]

"""Which documents a device obeys: files of its own and published ones, composed into the one policy in force.

Law: while one of them is missing or cannot be read there is no policy, and nothing leaves; an older one is never taken.
"""

from collections.abc import Iterable
from importlib import resources
from pathlib import Path

import msgspec

from edge_agent.system.settings import name_of
from policies.language.document import Document, PolicyError, compose, parse
from policies.model.policy import Part, Policy, may_replace
from wire.process.exit_codes import Exit, ExitError
from wire.process.files import read_text

MAX_POLICY_BYTES = 256 * 1024
Documents = tuple[Document, ...]


class Layers(msgspec.Struct, frozen=True):
    """As configured: `published` names of the update repository, paths of `files`, and whether nothing may leave."""

    published: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    airgap: bool = False


def layers_of(settings: Iterable[str], *, airgap: bool) -> Layers:
    """Of the configuration's `policy`: each a path or `tuf:NAME`; "" is none."""
    named = tuple(filter(None, settings))
    published = tuple(name_of(each) for each in named if name_of(each))
    return Layers(published, tuple(each for each in named if not name_of(each)), airgap)


def read_files(layers: Layers) -> Documents:
    """Every file, and the built-in airgap where it is switched on.

    ExitError(POLICY) for the first that cannot be used.
    """
    found = tuple(map(_read, layers.files))
    return (*found, _airgap()) if layers.airgap else found


def read_published(texts: Iterable[bytes | None]) -> Documents | None:
    """None if one of them is not here yet, or was written for an agent that knows more than we do."""
    try:
        return tuple(parse(text.decode()) if text is not None else _missing() for text in texts)
    except (PolicyError, UnicodeDecodeError):
        return None


class _Unsigned(msgspec.Struct, frozen=True):
    """A file of the device: it may narrow, but it ends no notice, which only a signed document can."""

    document: Document

    def part(self) -> Part:
        return msgspec.structs.replace(self.document.part(), clears_notice=0)


class Standing:
    """The policy in force, and of what it is made. Files and published documents change apart."""

    def __init__(self, files: Documents = (), published: Documents | None = ()) -> None:
        """PolicyError if they do not go together."""
        self._files, self._published = files, published
        self.policy = _together(files, published)

    def take_files(self, files: Documents) -> Policy | None:
        """The policy that is now in force if it is another one; None if nothing changes. PolicyError as above."""
        return self._take(files, self._published)

    def take_published(self, published: Documents | None) -> Policy | None:
        """As `take_files`."""
        return self._take(self._files, published)

    def _take(self, files: Documents, published: Documents | None) -> Policy | None:
        candidate = _together(files, published)
        if candidate is None or candidate == self.policy:
            return None
        if self.policy is not None and not may_replace(self.policy, candidate):
            return None
        self._files, self._published, self.policy = files, published, candidate
        return candidate


def _together(files: Documents, published: Documents | None) -> Policy | None:
    if published is None or not (files or published):
        return None
    return compose((*map(_Unsigned, files), *published))


def _read(path: str) -> Document:
    text = read_text(Path(path), Exit.POLICY)
    try:
        return parse(text)
    except PolicyError as error:
        raise ExitError(Exit.POLICY, f"{path}: {error}; `skerry policy check {path}` says the same") from None


def _airgap() -> Document:
    return parse(resources.files("policies").joinpath("templates", "airgap.toml").read_text(encoding="utf-8"))


def _missing() -> Document:
    raise PolicyError("not published yet")

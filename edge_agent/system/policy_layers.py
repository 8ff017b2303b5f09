"""The policy documents of a device: local files and published ones, composed into the one policy in force.

Rule: while one of the documents is missing or cannot be read there is no policy, and nothing leaves; an older one is
never used in its place.
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
    """Policy documents as configured.

    `published`: names in the update repository. `files`: paths. `airgap`: add the built-in document that lets nothing
    leave.
    """

    published: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    airgap: bool = False


def layers_of(settings: Iterable[str], *, airgap: bool) -> Layers:
    """Parse the configuration's `policy` list: each entry is a path or `tuf:NAME`; empty ones are skipped."""
    named = tuple(filter(None, settings))
    published = tuple(name_of(each) for each in named if name_of(each))
    return Layers(published, tuple(each for each in named if not name_of(each)), airgap)


def read_files(layers: Layers) -> Documents:
    """Read every policy file, and the built-in airgap document where it is switched on.

    ExitError(POLICY) for the first that cannot be used.
    """
    found = tuple(map(_read, layers.files))
    return (*found, _airgap()) if layers.airgap else found


def read_published(texts: Iterable[bytes | None]) -> Documents | None:
    """Parse the published documents.

    None if one of them is not downloaded yet, or uses keys of a newer agent version.
    """
    try:
        return tuple(parse(text.decode()) if text is not None else _missing() for text in texts)
    except (PolicyError, UnicodeDecodeError):
        return None


class _Unsigned(msgspec.Struct, frozen=True):
    """A local policy file: it may narrow, but cannot clear a deny-all notice, which only a signed document can."""

    document: Document

    def part(self) -> Part:
        return msgspec.structs.replace(self.document.part(), clears_notice=0)


class Standing:
    """The policy in force and the documents it is composed of; files and published documents change separately."""

    def __init__(self, files: Documents = (), published: Documents | None = ()) -> None:
        """PolicyError if the documents cannot be composed."""
        self._files, self._published = files, published
        self.policy = _together(files, published)

    def take_files(self, files: Documents) -> Policy | None:
        """Replace the local documents.

        Returns the policy that is now in force, None if nothing changes. PolicyError if the documents cannot be
        composed.
        """
        return self._take(files, self._published)

    def take_published(self, published: Documents | None) -> Policy | None:
        """Replace the published documents; returns and errors as `take_files`."""
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

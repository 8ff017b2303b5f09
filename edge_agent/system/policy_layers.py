"""The policy documents of a device: local files and published ones, composed into the one policy in force.

Rule: while one of the documents is missing or cannot be read there is no policy, and nothing leaves; an older one is
never used in its place.
"""

from collections.abc import Iterable
from importlib import resources
from pathlib import Path

import msgspec

from edge_agent.system.policy_compiler import compile_documents
from edge_agent.system.settings import name_of
from policies.model.composition import compose_layers, order_layers
from policies.model.policy import CompiledLayer, Policy, may_replace_policy
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.files import read_file_text

MAX_POLICY_BYTES = 256 * 1024
PolicyDocuments = tuple[CompiledLayer, ...]  # one compiled document each


class PolicyLayers(msgspec.Struct, frozen=True):
    """Policy documents as configured.

    `published`: names in the update repository. `files`: paths. `airgap`: add the built-in document that lets nothing
    leave.
    """

    published: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    airgap: bool = False


def parse_layers(settings: Iterable[str], *, airgap: bool) -> PolicyLayers:
    """Parse the configuration's `policy` list: each entry is a path or `tuf:NAME`; empty ones are skipped."""
    named = tuple(filter(None, settings))
    published = tuple(name_of(each) for each in named if name_of(each))
    return PolicyLayers(published, tuple(each for each in named if not name_of(each)), airgap)


def read_policy_files(layers: PolicyLayers) -> PolicyDocuments:
    """Read every policy file, and the built-in airgap document where it is switched on.

    ExitError(POLICY) for the first that cannot be used.
    """
    texts = [read_file_text(Path(path), ExitCode.POLICY).encode() for path in layers.files]
    found = compile_documents([*texts, _read_airgap()] if layers.airgap else texts)
    for path, each in zip(layers.files, found, strict=False):
        if each.error:
            raise ExitError(ExitCode.POLICY, f"{path}: {each.error}; `skerry policy check {path}` says the same")
    if layers.airgap and found[-1].error:
        raise ExitError(ExitCode.POLICY, f"airgap: {found[-1].error}")
    return tuple(each.layer for each in found if each.layer)


def parse_published(texts: Iterable[bytes | None]) -> PolicyDocuments | None:
    """Compile the published documents.

    None if one of them is not downloaded yet, or uses keys of a newer agent version.
    """
    named = tuple(texts)
    held = [text for text in named if text is not None]
    if len(held) < len(named):
        return None
    layers = tuple(each.layer for each in compile_documents(held) if each.layer)
    return layers if len(layers) == len(held) else None


class PolicyStack:
    """The policy in force and the documents it is composed of; files and published documents change separately."""

    def __init__(self, files: PolicyDocuments = (), published: PolicyDocuments | None = ()) -> None:
        """PolicyError if the documents cannot be composed."""
        self._files, self._published = files, published
        self.policy = _compose_layers(files, published)

    def replace_files(self, files: PolicyDocuments) -> Policy | None:
        """Replace the local documents.

        Returns the policy that is now in force, None if nothing changes. PolicyError if the documents cannot be
        composed.
        """
        return self._replace_documents(files, self._published)

    def refuses_files(self, files: PolicyDocuments) -> bool:
        """Whether these documents may not replace the local ones: older, or changed under the same version.

        PolicyError if the documents cannot be composed.
        """
        candidate = _compose_layers(files, self._published)
        if candidate is None or self.policy is None or candidate == self.policy:
            return False
        return not may_replace_policy(self.policy, candidate)

    def replace_published(self, published: PolicyDocuments | None) -> Policy | None:
        """Replace the published documents; returns and errors as `replace_files`."""
        return self._replace_documents(self._files, published)

    def _replace_documents(self, files: PolicyDocuments, published: PolicyDocuments | None) -> Policy | None:
        candidate = _compose_layers(files, published)
        if candidate is None or candidate == self.policy:
            return None
        if self.policy is not None and not may_replace_policy(self.policy, candidate):
            return None
        self._files, self._published, self.policy = files, published, candidate
        return candidate


def _compose_layers(files: PolicyDocuments, published: PolicyDocuments | None) -> Policy | None:
    """The policy of all documents. A local file narrows, but ends no deny-all notice: only a signed document can."""
    if published is None or not (files or published):
        return None
    unsigned = [msgspec.structs.replace(each, clears_notice=0) for each in files]
    return compose_layers(order_layers((*unsigned, *published)))


def _read_airgap() -> bytes:
    return resources.files("policies").joinpath("templates", "airgap.toml").read_bytes()

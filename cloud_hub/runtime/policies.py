"""Policies that a hub serves under: documents from files and from its update repository, composed as on a device.

Rule: a document that is named but not published or not readable admits nothing; it never opens the hub to any policy.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from cloud_hub.repository.repository import Repository
from models.signing.roles import POLICY, policy_path
from policies.language.document import PolicyDocument, compose_policy, parse_policy
from policies.model.policy import Policy, PolicyError
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.logging import JsonLog, describe_error

TUF_PREFIX = "tuf:"
POLICY_WATCH_S = 1.0
PolicyEntry = str | tuple[str, ...]  # a path or `tuf:NAME`, or the layers of one composition
PolicyReader = Callable[[str], bytes | None]
PolicySink = Callable[[tuple[Policy, ...]], Awaitable[None]]


def read_nothing(_name: str) -> bytes | None:
    """Return no document, for a hub without a repository."""
    return None


def repository_reader(repository: Repository) -> PolicyReader:
    """Return a function that reads a published policy document by name; None for one that is not published."""

    def read(name: str) -> bytes | None:
        role = repository.read_state().base.get(POLICY)
        info = role.signed.targets.get(policy_path(name)) if role else None
        return repository.shelf.read_target(info) if info else None

    return read


def compile_policies(entries: Sequence[PolicyEntry], published: PolicyReader) -> tuple[Policy, ...]:
    """Compile the policies that can be read now.

    ExitError(POLICY) for a file that cannot be used, or layers that do not go together.
    """
    found = []
    for entry in entries:
        layers = (entry,) if isinstance(entry, str) else entry
        documents = [_read_document(layer, published) for layer in layers]
        if None not in documents:
            found.append(_compose_layers(layers, [each for each in documents if each]))
    return tuple(found)


def _compose_layers(layers: Sequence[str], documents: list[PolicyDocument]) -> Policy:
    try:
        return compose_policy(documents)
    except PolicyError as error:
        raise ExitError(ExitCode.POLICY, f"{', '.join(layers)}: {error}") from None


def _read_document(layer: str, published: PolicyReader) -> PolicyDocument | None:
    """Read one document; None for one that is not published yet."""
    try:
        if not layer.startswith(TUF_PREFIX):
            return parse_policy(Path(layer).expanduser().read_text(encoding="utf-8-sig"))
        data = published(layer.removeprefix(TUF_PREFIX))
        return parse_policy(data) if data else None
    except FileNotFoundError as error:
        raise ExitError(ExitCode.MISSING, f"{layer}: {error.strerror}") from None
    except OSError as error:
        raise ExitError(ExitCode.POLICY, f"cannot read {layer}: {error.strerror}") from None
    except (PolicyError, UnicodeDecodeError) as error:
        raise ExitError(ExitCode.POLICY, f"{layer}: {error}") from None


class PolicyWatcher:
    """Watches the repository and replaces the served policies when a new version is published.

    Policies served before stay so until the next publication: questions under them are still on their way, because
    devices follow within half an hour.
    """

    def __init__(
        self, entries: Sequence[PolicyEntry], repository: Repository, log: JsonLog, served: tuple[Policy, ...] = ()
    ) -> None:
        """`served`: the policies served from the start."""
        self._entries = entries
        self._repository = repository
        self._log = log
        self._known = -1
        self._served = served

    def follow(self, entries: Sequence[PolicyEntry], served: tuple[Policy, ...]) -> tuple[Policy, ...]:
        """Watch for these entries from now on, of which `served` are served; returns those served before."""
        before, self._entries, self._served = self._served, entries, served
        return before

    async def run(self, serve: PolicySink, every_s: float = POLICY_WATCH_S) -> None:
        """Watch for ever, calling `serve` with every new set; returns at once if no entry comes from the repository."""
        if not is_published(self._entries):
            return
        while True:
            found = await asyncio.to_thread(self._read_news)
            if found is not None and found != self._served:
                before = tuple(each for each in self._served if each not in found)
                await serve((*found, *before))
                self._served = found
                self._log.info("policies_served", policies=len(found))
            await asyncio.sleep(every_s)

    def _read_news(self) -> tuple[Policy, ...] | None:
        """Return the policies after a new publication; None without one, or if unreadable: the old ones stay."""
        try:
            version = self._repository.snapshot_version()
            if version <= self._known:
                return None
            found = compile_policies(self._entries, repository_reader(self._repository))
        except ExitError as stop:
            self._log.error("policies_unreadable", error=describe_error(stop))
            return None
        self._known = version
        return found


def is_published(entries: Sequence[PolicyEntry]) -> bool:
    """Whether any of these policies has a layer that comes from the update repository."""
    return any(each.startswith(TUF_PREFIX) for entry in entries for each in _split_layers(entry))


def _split_layers(entry: PolicyEntry) -> tuple[str, ...]:
    return (entry,) if isinstance(entry, str) else entry

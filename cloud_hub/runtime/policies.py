"""Under which policies a hub serves: files, and documents of its own update repository, composed as on a device.

Law: a document that is named and not there yet, or not readable, lets nothing in; it never opens the hub to any policy.
"""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from cloud_hub.repository.repository import Repository
from models.signing.roles import POLICY, policy_path
from policies.language.document import Document, compose, parse
from policies.model.policy import Policy, PolicyError
from wire.process.exit_codes import Exit, ExitError
from wire.process.logging import Log, fault

TUF = "tuf:"
EVERY_S = 1.0
Entry = str | tuple[str, ...]  # a path or `tuf:NAME`, or the layers of one composition
Published = Callable[[str], bytes | None]


def nothing(_name: str) -> bytes | None:
    """Where there is no repository to look into."""
    return None


def published_in(repository: Repository) -> Published:
    """Reads what this hub has published, by the policy's name; None for what it has not."""

    def read(name: str) -> bytes | None:
        role = repository.state().base.get(POLICY)
        info = role.signed.targets.get(policy_path(name)) if role else None
        return repository.shelf.target(info) if info else None

    return read


def policies_of(entries: Sequence[Entry], published: Published) -> tuple[Policy, ...]:
    """Those that can be read now.

    ExitError(POLICY) for a file that cannot be used, or layers that do not go together.
    """
    found = []
    for entry in entries:
        layers = (entry,) if isinstance(entry, str) else entry
        documents = [_document(layer, published) for layer in layers]
        if None not in documents:
            found.append(_composed(layers, [each for each in documents if each]))
    return tuple(found)


def _composed(layers: Sequence[str], documents: list[Document]) -> Policy:
    try:
        return compose(documents)
    except PolicyError as error:
        raise ExitError(Exit.POLICY, f"{', '.join(layers)}: {error}") from None


def _document(layer: str, published: Published) -> Document | None:
    """None for one that was not published yet."""
    try:
        if not layer.startswith(TUF):
            return parse(Path(layer).expanduser().read_text(encoding="utf-8"))
        data = published(layer.removeprefix(TUF))
        return parse(data.decode()) if data else None
    except OSError as error:
        raise ExitError(Exit.POLICY, f"cannot read {layer}: {error.strerror}") from None
    except (PolicyError, UnicodeDecodeError) as error:
        raise ExitError(Exit.POLICY, f"{layer}: {error}") from None


class Watch:
    """Hands on what is served as soon as something new is published. Devices come after it within half an hour.

    What was served before stays so until the next publication: questions under it are still on their way.
    """

    def __init__(
        self, entries: Sequence[Entry], repository: Repository, log: Log, served: tuple[Policy, ...] = ()
    ) -> None:
        """`served`: already, from the start."""
        self._entries = entries
        self._repository = repository
        self._log = log
        self._known = -1
        self._served = served

    async def run(self, serve: Callable[[tuple[Policy, ...]], None], every_s: float = EVERY_S) -> None:
        """For ever, unless nothing comes from the repository."""
        if not any(each.startswith(TUF) for entry in self._entries for each in _layers(entry)):
            return
        while True:
            found = await asyncio.to_thread(self._news)
            if found is not None and found != self._served:
                before = tuple(each for each in self._served if each not in found)
                serve((*found, *before))
                self._served = found
                self._log.info("policies_served", policies=len(found))
            await asyncio.sleep(every_s)

    def _news(self) -> tuple[Policy, ...] | None:
        """None if nothing was published since, or it cannot be read: then what is served stays."""
        try:
            version = self._repository.snapshot_version()
            if version <= self._known:
                return None
            found = policies_of(self._entries, published_in(self._repository))
        except ExitError as stop:
            self._log.error("policies_unreadable", error=fault(stop))
            return None
        self._known = version
        return found


def _layers(entry: Entry) -> tuple[str, ...]:
    return (entry,) if isinstance(entry, str) else entry

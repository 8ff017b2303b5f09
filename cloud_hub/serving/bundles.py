"""Catalogue of the model bundles a hub may serve, loaded or not, and the opening of an engine for one of them.

Rule: called from threads other than the event loop's; a damaged bundle is left out of the list and reported when it is
opened.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Protocol

from cloud_hub.engine.base import Engine, EngineError
from cloud_hub.engine.types import ModelCard, make_bundle_card
from cloud_hub.system.settings import HubSettings
from models.bundle.bundle import open_bundle_streamed
from models.bundle.manifest import MANIFEST_FILE, BundleError


class BundleCatalog(Protocol):
    """Catalogue of models that can be loaded."""

    def cards(self) -> list[ModelCard]:
        """Cards of the models that could be loaded now, read from disk again."""
        ...

    def open(self, model: str) -> Engine:
        """A started engine of `digits@7`, not warmed up. BundleError or EngineError with one line."""
        ...


class MemoryCatalog:
    """Catalogue in memory: makes engines by name.

    The test double, and the catalogue of a hub that was given its engines.
    """

    def __init__(self, makers: Mapping[str, Callable[[], Engine]], cards: Iterable[ModelCard] = ()) -> None:
        self._makers = dict(makers)
        self._cards = {card.name: card for card in cards}

    def add_engine(self, card: ModelCard, make: Callable[[], Engine]) -> None:
        """Add or replace a model, with the function that makes its engine."""
        self._cards[card.name] = card
        self._makers[card.name] = make

    def cards(self) -> list[ModelCard]:
        return list(self._cards.values())

    def open(self, model: str) -> Engine:
        make = self._makers.get(model)
        if make is None:
            raise EngineError(f"there is no bundle of {model}")
        return make()


class BundleFolders:
    """Catalogue of bundle folders: the configured ones, and those in `folder` at the moment (None = no such folder)."""

    def __init__(
        self, named: Iterable[Path], folder: Path | None, settings: HubSettings, make: Callable[[Path], Engine]
    ) -> None:
        self._named = tuple(named)
        self._folder = folder
        self._settings = settings
        self._make = make
        self._seen: dict[Path, tuple[int, ModelCard]] = {}  # mtime of its manifest in ns, its card

    def initial_bundles(self, retired: frozenset[str] = frozenset()) -> list[Path]:
        """Folders to load at start: all, or as many as `max_loaded` allows, the newest version of each model first.

        BundleError if a configured one is damaged.
        """
        most = self._settings.max_loaded
        if not (most or retired or self._folder):
            return list(self._named)
        named = [(path, self._read_card(path)) for path in self._named]
        lying = [(path, card) for path in self._list_folders() if (card := self._read_card_or_none(path))]
        cards = {card.name: (path, card) for path, card in (*lying, *named) if card.name not in retired}
        ranks: Counter[str] = Counter()
        ranked: list[tuple[int, Path]] = []
        for path, card in sorted(cards.values(), key=lambda pair: -pair[1].ref.version):
            ranked.append((ranks[card.ref.name], path))
            ranks[card.ref.name] += 1
        ranked.sort(key=lambda pair: pair[0])
        return [path for _, path in ranked[: most or None]]

    def cards(self) -> list[ModelCard]:
        return [card for _, card in self._list_bundles().values()]

    def open(self, model: str) -> Engine:
        """Open the engine of a model. EngineError if there is no valid bundle of it."""
        found = self._list_bundles().get(model)
        if found is None:
            raise EngineError(f"there is no sound bundle of {model}")
        return self._make(found[0])

    def _list_bundles(self) -> dict[str, tuple[Path, ModelCard]]:
        found: dict[str, tuple[Path, ModelCard]] = {}
        for path in (*self._named, *self._list_folders()):
            card = self._read_card_or_none(path)
            if card is not None:
                found.setdefault(card.name, (path, card))
        return found

    def _list_folders(self) -> list[Path]:
        return sorted(manifest.parent for manifest in self._folder.glob(f"*/{MANIFEST_FILE}")) if self._folder else []

    def _read_card_or_none(self, path: Path) -> ModelCard | None:
        try:
            return self._read_card(path)
        except (BundleError, OSError):
            return None

    def _read_card(self, path: Path) -> ModelCard:
        """Card of a bundle, cached by the manifest's mtime, since opening a bundle hashes every file."""
        manifest = path / MANIFEST_FILE
        written = manifest.stat().st_mtime_ns if manifest.exists() else 0
        seen = self._seen.get(path)
        if seen is not None and seen[0] == written:
            return seen[1]
        bundle = open_bundle_streamed(path)  # a large hub model is not read for its card
        try:
            card = make_bundle_card(bundle, self._settings.max_batch)
        finally:
            bundle.close()
        self._seen[path] = written, card
        return card

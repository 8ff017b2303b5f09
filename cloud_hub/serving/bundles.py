"""Catalogue of the model bundles a hub may serve, loaded or not, and the opening of an engine for one of them.

Rule: called from threads other than the event loop's; a damaged version is left out of the list and reported when the
hub starts and when somebody wants it opened.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from cloud_hub.engine.base import ClusterError, Engine, EngineError
from cloud_hub.engine.types import ModelCard, make_bundle_card
from cloud_hub.system.settings import HubSettings
from models.bundle.bundle import open_edge_part
from models.bundle.hub_part import open_hub_part
from models.bundle.manifest import MANIFEST_FILE, BundleError, Manifest


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
        """Folders to load at start: all, or as many as there is room for, the newest version of each model first.

        BundleError if a configured one is damaged.
        """
        if not (self._settings.max_loaded or self._settings.max_loaded_bytes or retired or self._folder):
            return list(self._named)
        named = [(path, self._read_card(path)) for path in self._named]
        lying = [(path, card) for path in self._list_folders() if (card := self._read_card_or_none(path))]
        cards = {card.name: (path, card) for path, card in (*lying, *named) if card.name not in retired}
        ranks: Counter[str] = Counter()
        ranked: list[tuple[int, Path, ModelCard]] = []
        for path, card in sorted(cards.values(), key=lambda pair: -pair[1].ref.version):
            ranked.append((ranks[card.ref.name], path, card))
            ranks[card.ref.name] += 1
        ranked.sort(key=lambda pair: pair[0])
        return self._choose_fitting([(path, card) for _, path, card in ranked])

    def _choose_fitting(self, ranked: Iterable[tuple[Path, ModelCard]]) -> list[Path]:
        """Choose the first that fit `max_loaded` and `max_loaded_bytes` together; the others are loaded on demand."""
        chosen: list[Path] = []
        left = self._settings.max_loaded_bytes or float("inf")
        for path, card in ranked:
            if card.weight_bytes <= left and len(chosen) < (self._settings.max_loaded or float("inf")):
                chosen.append(path)
                left -= card.weight_bytes
        return chosen

    def open_initial(self, retired: frozenset[str], report: Callable[[Path, str], None]) -> list[Engine]:
        """Open the engines to start with, started: those of `initial_bundles`.

        A version of `folder` that cannot be used, as its hub part is missing, damaged or of another version, is told to
        `report` with one line, and the version before it is taken. BundleError or EngineError if a configured one
        cannot be used; ClusterError whatever the version, for the one before it needs the same machines.
        """
        for path, why in self.list_damaged().items():
            if path not in self._named:
                report(path, why)
        opened: dict[Path, Engine] = {}
        while left := [each for each in self.initial_bundles(retired) if each not in opened]:
            try:
                opened[left[0]] = self._make(left[0])
            except (BundleError, EngineError) as error:
                if left[0] in self._named or isinstance(error, ClusterError):
                    _stop_engines(opened.values())
                    raise
                report(left[0], str(error))
                retired |= {self._read_card(left[0]).name}
        return list(opened.values())

    def cards(self) -> list[ModelCard]:
        return [card for _, card in self._list_bundles().values()]

    def open(self, model: str) -> Engine:
        """Open the engine of a model. EngineError if there is no valid bundle of it, with what is wrong with one."""
        found = self._list_bundles().get(model)
        if found is None:
            why = next((f": {why}" for path, why in self.list_damaged().items() if path.name == model), "")
            raise EngineError(f"there is no sound bundle of {model}{why}")
        return self._make(found[0])

    def list_damaged(self) -> dict[Path, str]:
        """List the folders that hold no sound version now, each with one line that says why."""
        damaged: dict[Path, str] = {}
        for path in (*self._named, *self._list_folders()):
            try:
                self._read_card(path)
            except (BundleError, OSError) as error:
                damaged[path] = str(error)
        return damaged

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
        """Card of a bundle, cached by the manifest's mtime, since opening an edge part hashes every file of it."""
        manifest = path / MANIFEST_FILE
        written = manifest.stat().st_mtime_ns if manifest.exists() else 0
        seen = self._seen.get(path)
        if seen is not None and seen[0] == written:
            return seen[1]
        edge = open_edge_part(path)
        card = make_bundle_card(edge, self._settings.max_batch)
        card = msgspec.structs.replace(card, weight_bytes=_count_stored_bytes(path, edge.manifest))
        self._seen[path] = written, card
        return card


def _count_stored_bytes(path: Path, manifest: Manifest) -> int:
    """Count the bytes of a hub model's files; 0 if its hub part cannot be used, which is said when it is opened."""
    try:
        return sum(file.size_bytes for file in open_hub_part(path, manifest).manifest.files.values())
    except BundleError:
        return 0


def _stop_engines(engines: Iterable[Engine]) -> None:
    for engine in engines:
        engine.stop()

"""Benchmark: update client: cost of a steady refresh, and bytes of a bundle when the connection breaks.

Rule: the repository answers over HTTP on loopback from memory, so what is measured is the client; cuts are resets,
which lose what is on the way, and bytes are counted where the server, with a small send buffer, writes them.
"""

import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.harness.figures import Figure, find_median, find_percentile, format_line
from models.update.client import RepositorySource, UpdateClient
from models.update.downloader import ResumingFetcher, TransferClock
from models.update.partial_download import PartialDownload
from tests.models.doubles.mirror import Faults, Mirror
from tests.models.doubles.repository import Repository

REFRESHES = 200
BUNDLE_BYTES = 50_000_000
CUTS_PERCENT = (1, 50, 99)
BUNDLE = "models/digits/digits-7.skb"


async def run_benchmark(folder: Path, _bundle: Path) -> list[Figure]:
    """The figures; no bundle of the demo is needed."""
    return await asyncio.to_thread(build_figures, folder)


def build_figures(folder: Path) -> list[Figure]:
    repository = Repository()
    for role, paths in (("models-digits", "models/digits/*"), ("policy", "policy/*"), ("keys", "keys/*")):
        repository.delegate(role, [paths], terminating=True)
    repository.publish_all("models-digits", "policy", "keys", "targets")
    with Mirror(repository.files) as mirror:
        return [
            *_measure_steady(folder / "steady", repository, mirror),
            *_measure_cut(folder / "cut", repository, mirror),
        ]


def _measure_steady(folder: Path, repository: Repository, mirror: Mirror) -> list[Figure]:
    """A new client each time, as after 1800 s: connection, floors and judgement included."""
    folder.mkdir()
    taken: list[float] = []
    most = 0
    for _ in range(REFRESHES + 1):
        fetcher = ResumingFetcher()
        errand = UpdateClient(folder, _make_source(repository, mirror), fetcher)
        began = time.perf_counter()
        errand.refresh()
        taken.append((time.perf_counter() - began) * 1e3)
        errand.close()
        most = max(most, fetcher.requests) if len(taken) > 1 else 0
    first, *steady = taken
    terms = (f"p99 {find_percentile(steady, 0.99):.1f} ms", f"the first of all: {first:.1f} ms")
    return [
        Figure("steady refresh, requests", most, "requests", 3),
        Figure("steady refresh, time (p50)", find_median(steady), "ms", 25, terms=terms),
    ]


def _measure_cut(folder: Path, repository: Repository, mirror: Mirror) -> list[Figure]:
    folder.mkdir()
    repository.add(BUNDLE, os.urandom(BUNDLE_BYTES), "models-digits", version=7)
    repository.publish_all("models-digits")
    ratios, terms = [], []
    for percent in CUTS_PERCENT:
        fetcher = ResumingFetcher(hands=TransferClock(sleep=lambda _: None))
        errand = UpdateClient(folder, _make_source(repository, mirror), fetcher)
        session = errand.refresh()
        found = session.approved_target(BUNDLE)
        assert found is not None
        mirror.faults = Faults(cuts=[BUNDLE_BYTES * percent // 100], reset=True)
        before, began = mirror.sent_bytes, time.perf_counter()
        with PartialDownload(folder / f"{percent}.part") as part:
            session.download(found, part)
            part.discard()
        ratios.append((mirror.sent_bytes - before) / BUNDLE_BYTES)
        terms.append(f"cut at {percent} %: {ratios[-1]:.4f} x, {time.perf_counter() - began:.2f} s")
        errand.close()
    return [Figure("50 MB bundle, cut once: bytes sent, worst", max(ratios), "x", 1.05, terms=tuple(terms))]


def _make_source(repository: Repository, mirror: Mirror) -> RepositorySource:
    return RepositorySource(f"{mirror.url}metadata/", f"{mirror.url}targets/", repository.trusted_root)


def main() -> int:
    """Run alone: 1 if a limit was not held."""
    with tempfile.TemporaryDirectory(prefix="skerry-bench-") as folder:
        found = build_figures(Path(folder))
    for figure in found:
        print(format_line(figure), *(f"    {term}" for term in figure.terms), sep="\n")
    return 0 if all(figure.held for figure in found) else 1


if __name__ == "__main__":
    sys.exit(main())

"""Update worker: one look at the TUF repository, in a process of its own (`python -m edge_agent.update.worker`).

Rule: the memory and the crashes of TUF, the network and an untested bundle stay out of the agent's process: 5 MB of an
agent that may have 110, and every parser of foreign bytes. A job comes on stdin, a report leaves on stdout; what is
installed is in the store before the report says so. The process exits when its agent does.
"""

import os
import sqlite3
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from edge_agent.identity.hubs import read_keys
from edge_agent.system.http import context
from edge_agent.update.worker_protocol import Follow, Report, UpdateJob
from models.bundle.manifest import BundleError
from models.signing.review import REVOKED
from models.update.client import Errand, Source
from models.update.downloader import Fetcher
from models.update.floors import MAX_TRIES, Quarantine
from models.update.poll import News, Offer, Vouched, Wants, poll
from models.update.slots import Slot, Store
from models.update.trust import Refusal, failure_of
from models.verification.compatibility import judge_custom, judge_target, this_host
from models.verification.sandbox import FirstLoad, Outcome, first_load
from wire.protocol.rollout import Failure

_KEYS, _JSON = "keys/", ".json"
HOPELESS = frozenset({Outcome.REFUSED, Outcome.UNFIT, Outcome.DIFFERENT})


class Choice:
    """Chooses the bundle of the family to install: the newest that is allowed, fits this host, and did not fail here.

    A device that follows assignments takes one only while it has none.
    """

    def __init__(self, store: Store, agent: str, follow: Follow) -> None:
        self._store = store
        self._follow = follow
        self._host = this_host(agent)
        self._quarantine = Quarantine(store.metadata, agent)
        self.offers: tuple[Offer, ...] = ()  # none before a trusted refresh
        self.refusals: list[Refusal] = []

    def choose(self, offers: tuple[Offer, ...], vouched: Vouched) -> Offer | None:
        """The offer to download; None for none. Offers come newest first."""
        del vouched
        self.offers = offers
        here = (slot for slot in (self._store.current, self._store.previous) if slot and not self.banned(slot))
        held = next(here, None)
        if self._follow is Follow.NONE or (held and self._follow is Follow.ASSIGNMENTS):
            return None
        for offer in offers:
            if held and offer.version <= held.version:
                return None
            if offer.custom.get(REVOKED) is not True and self._fits(offer) and not self._failed(offer):
                return offer
        return None

    def banned(self, slot: Slot) -> bool:
        """Whether the family's signer has revoked this bundle, by a refresh that we trust."""
        return any(offer.path == slot.path and offer.custom.get(REVOKED) is True for offer in self.offers)

    def _fits(self, offer: Offer) -> bool:
        refusal = judge_custom(offer.custom, self._host)
        if refusal:
            self.refusals.append(refusal)
        return refusal is None

    def _failed(self, offer: Offer) -> bool:
        failed = self._quarantine.tries(offer.path) >= MAX_TRIES
        if failed:
            self.refusals.append(Refusal(Failure.QUARANTINED, f"{offer.path}: it failed here before"))
        return failed


def run(job: UpdateJob) -> Report:
    """Carry out one job; blocks. Failures of repository, network, bundle or disk are in the report."""
    with Store(Path(job.folder)) as store:
        choice = Choice(store, job.agent, job.follow)
        wants = Wants(job.documents, job.family, choice.choose, lambda path, data: _judge(store, path, data))
        news = poll(road(job, store), store, wants)
        refusals = [*news.refusals, *choice.refusals]
        try:
            refusals += _install(store, job.agent, news.staged) if news.staged else ()
            left = _leave(store, choice)
        except (OSError, sqlite3.Error) as error:
            refusals.append(Refusal(failure_of(error), "the store"))
            left = ""
        return _report(news, store.current, left, refusals)


def _report(news: News, current: Slot | None, left: str, refusals: Iterable[Refusal]) -> Report:
    return Report(
        looked=True, refreshed=news.refreshed, documents=news.documents, current=current, left=left,
        refusals=tuple(refusals), alarm=news.alarm,
    )  # fmt: skip


def road(job: UpdateJob, store: Store) -> Errand:
    """A client of the update repository, from this device's trusted root on."""
    source = Source(f"{job.url}/metadata/", f"{job.url}/targets/", job.root, job.least_ms)
    return Errand(store.metadata, source, _fetcher(job))


def _fetcher(job: UpdateJob) -> Fetcher:
    """The downloader. A mirror on another host needs no TLS pin: TUF verifies what it serves."""
    there, hub = urlsplit(job.url), urlsplit(job.hub_url)
    pinned = there.scheme == "https" and there.netloc == hub.netloc
    return Fetcher(context=context(job.authorities, job.least_ms) if pinned else None)


def _install(store: Store, agent: str, staged: Slot) -> tuple[Refusal, ...]:
    """Lint, first load and golden set in a sandboxed child; then the bundle is current."""
    try:
        bundle = store.open(staged)
        unfit = judge_target(bundle.manifest.target, this_host(agent))
        found = FirstLoad(outcome=Outcome.UNFIT) if unfit else first_load(bundle)
    except BundleError as error:
        unfit, found = None, FirstLoad(outcome=Outcome.UNFIT, detail=str(error))
    if found.failure is None:
        store.activate(staged)
        return ()
    store.drop()
    Quarantine(store.metadata, agent).note(staged.path, hopeless=found.outcome in HOPELESS)
    return (unfit or Refusal(found.failure, f"{staged.path}: {found.outcome}: {found.detail}"[:300]),)


def _leave(store: Store, choice: Choice) -> str:
    """Leave a revoked bundle, for the previous one if that may serve. The path that was left, or ""."""
    current, previous = store.current, store.previous
    if current is None or not choice.banned(current):
        return ""
    if previous is None or choice.banned(previous):
        store.abandon()
    else:
        store.roll_back()
    return current.path


def _judge(store: Store, path: str, data: bytes) -> Refusal | None:
    try:
        if path.startswith(_KEYS):
            read_keys(data, path.removeprefix(_KEYS).removesuffix(_JSON))
            return None
        return _judge_policy(store, path, data)
    except ValueError as error:
        return Refusal(Failure.INTEGRITY, f"{path}: {error}"[:300])


def _judge_policy(store: Store, path: str, data: bytes) -> Refusal | None:
    """Whether the document is a sound policy of that name, and may replace the one that is here."""
    from policies.language.document import PolicyError, parse  # noqa: PLC0415 - half of this process's memory, seldom needed
    from policies.model.policy import may_replace  # noqa: PLC0415

    held = store.document(path)
    try:
        policy = parse(data.decode()).compile()
        before = parse(held[1].decode()).compile() if held else policy
    except PolicyError as error:
        return Refusal(Failure.POLICY, f"{path}: {error}"[:300])
    if path != f"policy/{policy.name}.toml" or not may_replace(before, policy):
        return Refusal(Failure.POLICY, f"{path}: it holds {policy.name} {policy.version}, not newer than the one here")
    return None


def _follow_agent() -> None:
    """Exit when stdin ends: the agent has ended, however it did."""
    sys.stdin.buffer.read()
    os._exit(1)


def main() -> int:
    """Read one job, write one report, each a line of JSON. What the store does between them survives any end."""
    job = msgspec.json.decode(sys.stdin.buffer.readline(), type=UpdateJob)
    threading.Thread(target=_follow_agent, daemon=True).start()
    sys.stdout.buffer.write(msgspec.json.encode(run(job)) + b"\n")
    sys.stdout.buffer.flush()
    os._exit(0)  # the thread above may hold stdin's lock


if __name__ == "__main__":
    sys.exit(main())

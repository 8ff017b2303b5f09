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
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from edge_agent.identity.hubs import parse_hub_keys, read_committed_version
from edge_agent.system.http import make_tls_context
from edge_agent.update.worker_protocol import FollowMode, PollReport, UpdateJob
from models.bundle.bundle import Bundle
from models.bundle.manifest import BundleError
from models.signing.review import REVOKED_FIELD
from models.update.client import RepositorySource, UpdateClient
from models.update.downloader import ResumingFetcher
from models.update.floors import MAX_TRIES, Quarantine, quarantine_name
from models.update.poll import AvailableTarget, PollRequest, PollResult, RefreshEvidence, poll_repository
from models.update.slots import Slot, Store
from models.update.trust import Refusal, classify_failure
from models.verification.compatibility import check_custom, check_interface, check_target, read_host
from models.verification.sandbox import FirstLoadReport, LoadOutcome, run_first_load
from wire.process.daemon import CpuTimeError, limit_cpu_time
from wire.protocol.rollout import InstallFailure

POLICY_CPU_S = 10.0  # to check one policy: the agent reads at its start what this process has taken
_KEYS, _JSON = "keys/", ".json"
PERMANENT_OUTCOMES = frozenset({LoadOutcome.REFUSED, LoadOutcome.UNFIT, LoadOutcome.MISMATCHED, LoadOutcome.DIFFERENT})


class BundleChooser:
    """Chooses the bundle of the family to install: the newest that is allowed, fits this host, and did not fail here.

    A device that follows assignments takes one only while it has none: the one that the fleet has committed, not one
    that is on trial there or failed.
    """

    def __init__(self, store: Store, job: UpdateJob) -> None:
        agent, self._follow = job.agent, job.follow
        self._store = store
        self._job = job
        self._host = read_host(agent)
        self._quarantine = Quarantine(store.metadata, agent)
        self.offers: tuple[AvailableTarget, ...] = ()  # none before a trusted refresh
        self.refusals: list[Refusal] = []

    def choose_offer(self, offers: tuple[AvailableTarget, ...], vouched: RefreshEvidence) -> AvailableTarget | None:
        """The offer to download; None for none. Offers come newest first."""
        del vouched
        self.offers = offers
        here = (slot for slot in (self._store.current, self._store.previous) if slot and not self.is_revoked(slot))
        held = next(here, None)
        if self._follow is FollowMode.NONE or (held and self._follow is FollowMode.ASSIGNMENTS):
            return None
        for offer in offers if held or self._follow is FollowMode.NEWEST else self._until_committed(offers):
            if held and offer.version <= held.version:
                return None
            if (
                offer.custom.get(REVOKED_FIELD) is not True
                and self._fits_host(offer)
                and not self._failed_before(offer)
            ):
                return offer
        return None

    def _until_committed(self, offers: tuple[AvailableTarget, ...]) -> tuple[AvailableTarget, ...]:
        """The offers up to the committed version, by the hub's signed word; all if it is gone, or nothing was said."""
        files = [self._store.read_document(path) for path in self._job.documents if path.startswith(_KEYS)]
        committed = max((read_committed_version(file[1], self._job.family) for file in files if file), default=0)
        there = any(offer.version == committed and offer.custom.get(REVOKED_FIELD) is not True for offer in offers)
        return tuple(offer for offer in offers if offer.version <= committed) if there else offers

    def is_revoked(self, slot: Slot) -> bool:
        """Whether the family's signer has revoked this bundle, by a refresh that we trust."""
        return any(offer.path == slot.path and offer.custom.get(REVOKED_FIELD) is True for offer in self.offers)

    def _fits_host(self, offer: AvailableTarget) -> bool:
        refusal = check_custom(offer.custom, self._host)
        if refusal:
            self.refusals.append(refusal)
        return refusal is None

    def _failed_before(self, offer: AvailableTarget) -> bool:
        name = quarantine_name(offer.path, new_interface=offer.new_interface)
        failed = self._quarantine.count_failures(name) >= MAX_TRIES
        if failed:
            self.refusals.append(Refusal(InstallFailure.QUARANTINED, f"{offer.path}: it failed here before"))
        return failed


def run_job(job: UpdateJob) -> PollReport:
    """Carry out one job; blocks. Failures of repository, network, bundle or disk are in the report."""
    with Store(Path(job.folder)) as store:
        choice = BundleChooser(store, job)
        wants = PollRequest(
            job.documents, job.family, choice.choose_offer, lambda path, data: _check_document(store, path, data)
        )
        news = poll_repository(open_client(job, store), store, wants)
        refusals = [*news.refusals, *choice.refusals]
        try:
            refusals += _install_bundle(store, job.agent, news.staged) if news.staged else ()
            left = _leave_revoked(store, choice)
        except (OSError, sqlite3.Error) as error:
            refusals.append(Refusal(classify_failure(error), "the store"))
            left = ""
        return _make_report(news, store.current, left, refusals)


def _make_report(news: PollResult, current: Slot | None, left: str, refusals: Iterable[Refusal]) -> PollReport:
    return PollReport(
        looked=True, refreshed=news.refreshed, documents=news.documents, current=current, left=left,
        refusals=tuple(refusals), alarm=news.alarm,
    )  # fmt: skip


def open_client(job: UpdateJob, store: Store) -> UpdateClient:
    """A client of the update repository, from this device's trusted root on."""
    source = RepositorySource(f"{job.url}/metadata/", f"{job.url}/targets/", job.root, job.least_ms)
    return UpdateClient(store.metadata, source, _make_fetcher(job))


def _make_fetcher(job: UpdateJob) -> ResumingFetcher:
    """The downloader. A mirror on another host needs no TLS pin: TUF verifies what it serves."""
    there, hub = urlsplit(job.url), urlsplit(job.hub_url)
    pinned = there.scheme == "https" and there.netloc == hub.netloc
    context = make_tls_context(job.authorities, job.least_ms) if pinned else None
    return ResumingFetcher(context=context, proxy=job.proxy)


def _install_bundle(store: Store, agent: str, staged: Slot) -> tuple[Refusal, ...]:
    """Lint, first load and golden set in a sandboxed child; then the bundle is current."""
    try:
        bundle = store.open_slot(staged)
        unfit = check_target(bundle.manifest.target, read_host(agent)) or check_replacement(store, staged, bundle)
        found = FirstLoadReport(outcome=LoadOutcome.UNFIT) if unfit else run_first_load(bundle)
    except BundleError as error:
        unfit, found = None, FirstLoadReport(outcome=LoadOutcome.UNFIT, detail=str(error))
    if found.failure is None:
        store.activate(staged)
        return ()
    store.drop_staged()
    name = quarantine_name(staged.path, new_interface=staged.new_interface)
    Quarantine(store.metadata, agent).record_failure(name, hopeless=found.outcome in PERMANENT_OUTCOMES)
    return (unfit or Refusal(found.failure, f"{staged.path}: {found.outcome}: {found.detail}"[:300]),)


def check_replacement(store: Store, staged: Slot, bundle: Bundle) -> Refusal | None:
    """Check that callers of the committed model can call the staged one, unless its signers allow the difference.

    None if they can, or nothing that opens serves.
    """
    committed = store.previous if store.on_trial else store.current
    if committed is None or staged.new_interface:
        return None
    with suppress(BundleError):
        return check_interface(bundle.manifest, store.open_slot(committed).manifest)
    return None


def _leave_revoked(store: Store, choice: BundleChooser) -> str:
    """Leave a revoked bundle, for the previous one if that may serve. The path that was left, or ""."""
    current, previous = store.current, store.previous
    if current is None or not choice.is_revoked(current):
        return ""
    if previous is None or choice.is_revoked(previous):
        store.abandon_slots()
    else:
        store.roll_back()
    return current.path


def _check_document(store: Store, path: str, data: bytes) -> Refusal | None:
    try:
        if path.startswith(_KEYS):
            parse_hub_keys(data, path.removeprefix(_KEYS).removesuffix(_JSON))
            return None
        return check_policy(store, path, data)
    except ValueError as error:
        return Refusal(InstallFailure.INTEGRITY, f"{path}: {error}"[:300])


def check_policy(store: Store, path: str, data: bytes, cpu_s: float = POLICY_CPU_S) -> Refusal | None:
    """Whether the document is a sound policy of that name, and may replace the one that is here.

    One that takes more than `cpu_s` seconds of CPU time to read and compile is none for this device.
    """
    from policies.language.document import PolicyError, parse_policy  # noqa: PLC0415 - half of this process's memory, seldom needed
    from policies.model.policy import may_replace_policy  # noqa: PLC0415

    held = store.read_document(path)
    try:
        with limit_cpu_time(cpu_s):
            policy = parse_policy(data).compile()
        before = parse_policy(held[1]).compile() if held else policy
    except (PolicyError, CpuTimeError) as error:
        return Refusal(InstallFailure.POLICY, f"{path}: {error}"[:300])
    if path != f"policy/{policy.name}.toml" or not may_replace_policy(before, policy):
        return Refusal(
            InstallFailure.POLICY, f"{path}: it holds {policy.name} {policy.version}, not newer than the one here"
        )
    return None


def _exit_with_agent() -> None:
    """Exit when stdin ends: the agent has ended, however it did."""
    sys.stdin.buffer.read()
    os._exit(1)


def main() -> int:
    """Read one job, write one report, each a line of JSON. What the store does between them survives any end."""
    job = msgspec.json.decode(sys.stdin.buffer.readline(), type=UpdateJob)
    threading.Thread(target=_exit_with_agent, daemon=True).start()
    sys.stdout.buffer.write(msgspec.json.encode(run_job(job)) + b"\n")
    sys.stdout.buffer.flush()
    os._exit(0)  # the thread above may hold stdin's lock


if __name__ == "__main__":
    sys.exit(main())

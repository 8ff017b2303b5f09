"""Worker process of an install: checks an assignment with the repository, or downloads, verifies and tests a bundle.

Started as `python -m edge_agent.update.install_worker`.

Rule: it announces each state, and waits until the agent has stored it. The memory and the crashes of TUF, the network
and an untested bundle stay out of the agent's process. It exits when its agent does.
"""

import os
import sqlite3
import sys
import threading
from collections.abc import Callable
from hashlib import file_digest
from pathlib import Path
from queue import SimpleQueue

import msgspec

from edge_agent.update.worker import PERMANENT_OUTCOMES, check_replacement, open_client
from edge_agent.update.worker_protocol import InstallMessage, InstallRequest
from models.bundle.manifest import BundleError
from models.signing.review import REVOKED_FIELD
from models.signing.roles import Permit
from models.update.assignments import InstallTarget, ListedBundle, RepositoryView, resolve_assignment
from models.update.client import RefusedError, TrustedSession
from models.update.floors import MAX_TRIES, Quarantine, quarantine_name
from models.update.poll import AvailableTarget, build_slot, list_available_targets
from models.update.slots import Slot, Store, StoreStep
from models.update.trust import Refusal, classify_failure
from models.update.tuf_view import ListedTarget
from models.verification.compatibility import check_custom, check_target, read_host
from models.verification.sandbox import FirstLoadReport, LoadOutcome, run_first_load
from wire.protocol.rollout import InstallFailure, InstallState

StateHook = Callable[[InstallState], None]


def run_request(
    request: InstallRequest, reach: StateHook, step: Callable[[StoreStep], None] | None = None
) -> InstallMessage:
    """Carry out one request; blocks. Failures of repository, network, bundle or disk are in the message it returns.

    `reach(state)`: announces a state and waits. `step`: called at each point of the store's work.
    """
    with Store(Path(request.job.folder), *((step,) if step else ())) as store:
        try:
            return _fetch_bundle(request, store, reach) if request.target else _check_assignment(request, store)
        except RefusedError as refused:
            return _refused_message(refused.refusal)
        except (BundleError, OSError, sqlite3.Error) as error:
            failure = classify_failure(error)
            if failure is InstallFailure.DISK:
                store.reclaim_space()
            return _refused_message(Refusal(failure, (str(error) or failure)[:300]))


# Checking the assignment


def _check_assignment(request: InstallRequest, store: Store) -> InstallMessage:
    way = open_client(request.job, store)
    try:
        session = way.refresh()
        target = _find_target(request, store, session)
        if isinstance(target, Refusal):
            return _refused_message(target)
        found = session.approved_target(target.path, target.permit)
        if found is None:
            return _refused_message(Refusal(InstallFailure.INTEGRITY, f"{target.path}: no trusted role lists it"))
        slot = build_slot(found)
        below = store.current is not None and slot.version < store.current.version
        if target.permit is not None and below:  # whoever signed the way down knows what was called there
            slot = msgspec.structs.replace(slot, new_interface=True)
        return InstallMessage(slot=slot, length=found.info.length)
    finally:
        way.close()


def _find_target(request: InstallRequest, store: Store, session: TrustedSession) -> InstallTarget | Refusal:
    listed = {offer.path: offer for offer in list_available_targets(session, request.assignment.family)}
    target = resolve_assignment(request.assignment, _collect_facts(request, store, session, listed), request.now_ms)
    if isinstance(target, Refusal):
        return target
    return _refuse_unfit(request, store, listed[target.path], target.permit) or target


def _collect_facts(
    request: InstallRequest, store: Store, session: TrustedSession, listed: dict[str, AvailableTarget]
) -> RepositoryView:
    path, current = request.assignment.path, store.current
    running = ListedBundle(current.version, current.digest) if current else None
    versions = {offer.path: ListedBundle(offer.version, offer.digest) for offer in listed.values()}
    floor = session.floor_under(path) if path in listed else 0
    return RepositoryView(versions, floor, running, session.permits(request.assignment.family))


def _refuse_unfit(
    request: InstallRequest, store: Store, offer: AvailableTarget, permit: Permit | None
) -> Refusal | None:
    """Why a listed bundle is not tried here. A newly signed permit for it lifts a quarantine, once."""
    if offer.custom.get(REVOKED_FIELD) is True:
        return Refusal(InstallFailure.POLICY, f"{offer.path}: revoked by its signer")
    quarantine = Quarantine(store.metadata, request.job.agent)
    name = quarantine_name(offer.path, new_interface=offer.new_interface)
    if permit is not None:
        quarantine.lift(name, offer.digest, permit.expires_ms)
    if quarantine.count_failures(name) >= MAX_TRIES or quarantine.is_banned(offer.digest, request.now_ms):
        return Refusal(InstallFailure.QUARANTINED, f"{offer.path}: it failed here before")
    return check_custom(offer.custom, read_host(request.job.agent))


# Downloading and testing the bundle


def _fetch_bundle(request: InstallRequest, store: Store, reach: StateHook) -> InstallMessage:
    target = _require_target(request)
    staged = store.candidate if store.candidate and store.candidate.digest == target.digest else None
    if staged is None:
        if request.state is InstallState.DOWNLOADING or not _is_complete(store, target):
            _download_bundle(request, store, target, reach)
        reach(InstallState.VERIFYING)
        if not _is_complete(store, target):
            raise BundleError(f"{target.path}: its bytes do not have the digest that is listed")
        reach(InstallState.STAGED)
        staged = _stage_bundle(store, target)
    reach(InstallState.SELF_TEST)
    return _self_test(request, store, staged)


def _require_target(request: InstallRequest) -> Slot:
    if request.target is None:
        raise RuntimeError("the request has no target")
    return request.target


def _download_bundle(request: InstallRequest, store: Store, target: Slot, reach: StateHook) -> None:
    """Download into the partial file, which is kept if it is cut short.

    The download is authorised by a refresh of the repository in this very request.
    """
    reach(InstallState.DOWNLOADING)
    way = open_client(request.job, store)
    try:
        session = way.refresh()
        ours = (each for each in session.permits(request.assignment.family) if each.covers(request.assignment.device))
        permits: tuple[Permit | None, ...] = (None, *ours)
        found = _find_allowed(session, target, permits)
        with store.reserve_part(target.digest, found.info.length) as part:
            session.download(found, part)
            part.flush()
            os.fsync(part.file.fileno())
    finally:
        way.close()


def _find_allowed(session: TrustedSession, target: Slot, permits: tuple[Permit | None, ...]) -> ListedTarget:
    """The target's listing, as when it was checked: with the permit that allows it, if it needs one."""
    refused = RefusedError(Refusal(InstallFailure.INTEGRITY, f"{target.path}: it is no longer listed with this digest"))
    for permit in permits:
        try:
            found = session.approved_target(target.path, permit)
        except RefusedError as error:
            refused = error
            continue
        if found and build_slot(found).digest == target.digest:
            return found
    raise refused


def _is_complete(store: Store, target: Slot) -> bool:
    path = store.part_path(target.digest)
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest() == target.digest


def _stage_bundle(store: Store, target: Slot) -> Slot:
    """Unpack, sync, rename and name it as candidate: from here on the slot survives any end of the process."""
    with store.reserve_part(target.digest, 0) as part:
        staged = store.stage_bundle(part, target)
    store.name_candidate(staged)
    return staged


def _self_test(request: InstallRequest, store: Store, staged: Slot) -> InstallMessage:
    """Lint, first load and golden set, in a sandboxed child that is handed the verified bytes."""
    bundle = store.open_slot(staged)
    unfit = check_target(bundle.manifest.target, read_host(request.job.agent))
    unfit = unfit or check_replacement(store, staged, bundle)
    if unfit:
        return _refused_message(unfit)
    found = run_first_load(bundle)
    if found.failure is None:
        return InstallMessage(slot=staged, resident_bytes=found.model_bytes)
    return _failed_message(staged, found)


def _failed_message(staged: Slot, found: FirstLoadReport) -> InstallMessage:
    failure = found.failure or InstallFailure.SELF_TEST
    if found.outcome in (LoadOutcome.TIME, LoadOutcome.CRASHED, LoadOutcome.MEMORY):
        failure = InstallFailure.SELF_TEST
    detail = f"{staged.path}: {found.outcome}: {found.detail}"[:300]
    return InstallMessage(failure=failure, detail=detail, hopeless=found.outcome in PERMANENT_OUTCOMES)


def _refused_message(refusal: Refusal) -> InstallMessage:
    return InstallMessage(failure=refusal.failure, detail=refusal.detail)


# The process


class WorkerPipe:
    """The worker's end of its pipes: JSON lines on stdin and stdout.

    It exits the process when stdin ends, as the agent has.
    """

    def __init__(self) -> None:
        self._lines: SimpleQueue[bytes] = SimpleQueue()
        threading.Thread(target=self._read_lines, daemon=True).start()

    def _read_lines(self) -> None:
        for line in iter(sys.stdin.buffer.readline, b""):
            self._lines.put(line)
        os._exit(1)

    def read_line(self) -> bytes:
        """The next line from the agent; blocks."""
        return self._lines.get()

    def send_message(self, message: InstallMessage) -> None:
        """Write one message to the agent."""
        sys.stdout.buffer.write(msgspec.json.encode(message) + b"\n")
        sys.stdout.buffer.flush()

    def announce_state(self, state: InstallState) -> None:
        """Announce a state, and wait until the agent has stored it."""
        self.send_message(InstallMessage(reached=state))
        self.read_line()


def main() -> int:
    """Read one request; then announce states, each answered by the agent, until the last message."""
    pipe = WorkerPipe()
    request = msgspec.json.decode(pipe.read_line(), type=InstallRequest)
    pipe.send_message(run_request(request, pipe.announce_state))
    os._exit(0)  # the thread of the pipe holds stdin's lock


if __name__ == "__main__":
    sys.exit(main())

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

from edge_agent.update.worker import HOPELESS, road
from edge_agent.update.worker_protocol import WorkerMessage, WorkerRequest
from models.bundle.manifest import BundleError
from models.signing.review import REVOKED
from models.signing.roles import Permit
from models.update.assignments import Facts, Listed, Target, judge
from models.update.client import RefusedError, Session
from models.update.floors import MAX_TRIES, Quarantine
from models.update.poll import Offer, offers, slot_of
from models.update.slots import Slot, Step, Store
from models.update.trust import Refusal, failure_of
from models.update.tuf_view import Listing
from models.verification.compatibility import judge_custom, judge_target, this_host
from models.verification.sandbox import FirstLoad, Outcome, first_load
from wire.protocol.rollout import Failure, InstallState

Reach = Callable[[InstallState], None]


def run(request: WorkerRequest, reach: Reach, step: Callable[[Step], None] | None = None) -> WorkerMessage:
    """Carry out one request; blocks. Failures of repository, network, bundle or disk are in the message it returns.

    `reach(state)`: announces a state and waits. `step`: called at each point of the store's work.
    """
    with Store(Path(request.job.folder), *((step,) if step else ())) as store:
        try:
            return _fetched(request, store, reach) if request.target else _checked(request, store)
        except RefusedError as refused:
            return _no(refused.refusal)
        except (BundleError, OSError, sqlite3.Error) as error:
            failure = failure_of(error)
            if failure is Failure.DISK:
                store.reclaim()
            return _no(Refusal(failure, f"{type(error).__name__}: {error}"[:300]))


# Checking the assignment


def _checked(request: WorkerRequest, store: Store) -> WorkerMessage:
    way = road(request.job, store)
    try:
        session = way.refresh()
        found = _found(request, store, session)
        if isinstance(found, Refusal):
            return _no(found)
        return WorkerMessage(slot=slot_of(found), length=found.info.length)
    finally:
        way.close()


def _found(request: WorkerRequest, store: Store, session: Session) -> Listing | Refusal:
    listed = {offer.path: offer for offer in offers(session, request.assignment.family)}
    target = judge(request.assignment, _facts(request, store, session, listed), request.now_ms)
    if isinstance(target, Refusal):
        return target
    refusal = _unfit(request, store, listed[target.path])
    return refusal or _approved(session, target)


def _facts(request: WorkerRequest, store: Store, session: Session, listed: dict[str, Offer]) -> Facts:
    path, current = request.assignment.path, store.current
    running = Listed(current.version, current.digest) if current else None
    versions = {offer.path: Listed(offer.version, offer.digest) for offer in listed.values()}
    floor = session.floor_under(path) if path in listed else 0
    return Facts(versions, floor, running, session.permits(request.assignment.family))


def _unfit(request: WorkerRequest, store: Store, offer: Offer) -> Refusal | None:
    if offer.custom.get(REVOKED) is True:
        return Refusal(Failure.POLICY, f"{offer.path}: revoked by its signer")
    quarantine = Quarantine(store.metadata, request.job.agent)
    if quarantine.tries(offer.path) >= MAX_TRIES or quarantine.banned(offer.digest, request.now_ms):
        return Refusal(Failure.QUARANTINED, f"{offer.path}: it failed here before")
    return judge_custom(offer.custom, this_host(request.job.agent))


def _approved(session: Session, target: Target) -> Listing | Refusal:
    found = session.approved(target.path, target.permit)
    return found or Refusal(Failure.INTEGRITY, f"{target.path}: no trusted role lists it")


# Downloading and testing the bundle


def _fetched(request: WorkerRequest, store: Store, reach: Reach) -> WorkerMessage:
    target = _wanted(request)
    staged = store.candidate if store.candidate and store.candidate.digest == target.digest else None
    if staged is None:
        if request.state is InstallState.DOWNLOADING or not _whole(store, target):
            _download(request, store, target, reach)
        reach(InstallState.VERIFYING)
        if not _whole(store, target):
            raise BundleError(f"{target.path}: its bytes do not have the digest that is listed")
        reach(InstallState.STAGED)
        staged = _staged(store, target)
    reach(InstallState.SELF_TEST)
    return _tested(request, store, staged)


def _wanted(request: WorkerRequest) -> Slot:
    if request.target is None:
        raise RuntimeError("the request has no target")
    return request.target


def _download(request: WorkerRequest, store: Store, target: Slot, reach: Reach) -> None:
    """Download into the partial file, which is kept if it is cut short.

    The download is authorised by a refresh of the repository in this very request.
    """
    reach(InstallState.DOWNLOADING)
    way = road(request.job, store)
    try:
        session = way.refresh()
        permits: tuple[Permit | None, ...] = (None, *session.permits(request.assignment.family))
        found = _allowed(session, target, permits)
        with store.reserve(target.digest, found.info.length) as part:
            session.download(found, part)
            part.flush()
            os.fsync(part.file.fileno())
    finally:
        way.close()


def _allowed(session: Session, target: Slot, permits: tuple[Permit | None, ...]) -> Listing:
    """The target's listing, as when it was checked: with the permit that allows it, if it needs one."""
    refused = RefusedError(Refusal(Failure.INTEGRITY, f"{target.path}: it is no longer listed with this digest"))
    for permit in permits:
        try:
            found = session.approved(target.path, permit)
        except RefusedError as error:
            refused = error
            continue
        if found and slot_of(found).digest == target.digest:
            return found
    raise refused


def _whole(store: Store, target: Slot) -> bool:
    path = store.part_of(target.digest)
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest() == target.digest


def _staged(store: Store, target: Slot) -> Slot:
    """Unpack, sync, rename and name it as candidate: from here on the slot survives any end of the process."""
    with store.reserve(target.digest, 0) as part:
        staged = store.stage(part, target)
    store.name_candidate(staged)
    return staged


def _tested(request: WorkerRequest, store: Store, staged: Slot) -> WorkerMessage:
    """Lint, first load and golden set, in a sandboxed child that is handed the verified bytes."""
    bundle = store.open(staged)
    unfit = judge_target(bundle.manifest.target, this_host(request.job.agent))
    if unfit:
        return _no(unfit)
    found = first_load(bundle)
    if found.failure is None:
        return WorkerMessage(slot=staged, resident_bytes=found.model_bytes)
    return _failed(staged, found)


def _failed(staged: Slot, found: FirstLoad) -> WorkerMessage:
    failure = found.failure or Failure.SELF_TEST
    if found.outcome in (Outcome.TIME, Outcome.CRASHED, Outcome.MEMORY):
        failure = Failure.SELF_TEST
    detail = f"{staged.path}: {found.outcome}: {found.detail}"[:300]
    return WorkerMessage(failure=failure, detail=detail, hopeless=found.outcome in HOPELESS)


def _no(refusal: Refusal) -> WorkerMessage:
    return WorkerMessage(failure=refusal.failure, detail=refusal.detail)


# The process


class Pipe:
    """The worker's end of its pipes: JSON lines on stdin and stdout.

    It exits the process when stdin ends, as the agent has.
    """

    def __init__(self) -> None:
        self._lines: SimpleQueue[bytes] = SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in iter(sys.stdin.buffer.readline, b""):
            self._lines.put(line)
        os._exit(1)

    def hear(self) -> bytes:
        """The next line from the agent; blocks."""
        return self._lines.get()

    def say(self, message: WorkerMessage) -> None:
        """Write one message to the agent."""
        sys.stdout.buffer.write(msgspec.json.encode(message) + b"\n")
        sys.stdout.buffer.flush()

    def reach(self, state: InstallState) -> None:
        """Announce a state, and wait until the agent has stored it."""
        self.say(WorkerMessage(reached=state))
        self.hear()


def main() -> int:
    """Read one request; then announce states, each answered by the agent, until the last message."""
    pipe = Pipe()
    request = msgspec.json.decode(pipe.hear(), type=WorkerRequest)
    pipe.say(run(request, pipe.reach))
    os._exit(0)  # the thread of the pipe holds stdin's lock


if __name__ == "__main__":
    sys.exit(main())

"""Rollouts of model versions to a fleet, in waves: start, watch, stop."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from skerry_client.exchange.commands import Request, Steps, build_path, fetch_object, post_json
from skerry_client.exchange.operations import AsyncCalls, BlockingCalls, operation
from skerry_client.reading import read_list, read_value

_PATH = ("v1", "admin", "rollouts")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wave:
    """Totals of one wave: devices in it, told to install, reachable, succeeded, failed, incompatible, needed."""

    number: int
    devices: int
    told: int = 0
    reachable: int = 0
    succeeded: int = 0
    failed: int = 0
    incompatible: int = 0
    needed: int = 0
    proven: int = 0
    left: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutTarget:
    """A bundle version that devices are to install, or to go back to."""

    path: str
    version: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """A rollout as the hub tells it (docs/rollout.md). `plan`: the digest that people approve; `gate`: its evidence."""

    id: str
    family: str
    target: RolloutTarget
    back: RolloutTarget | None
    state: str
    why: str
    to: str
    by: str
    plan: str
    wave: int
    waves: tuple[Wave, ...]
    states: dict[str, int]
    devices: int
    made_ms: int
    changed_ms: int
    ends_ms: int = 0
    fleet: int = 0
    exposed: int = 0
    controls: int = 0
    approvals: tuple[str, ...] = ()
    people: int = 0
    held: bool = False
    gate: dict[str, Any] | None = None
    next_step: str = ""
    aborts: str = ""
    waits_for: tuple[str, ...] = ()
    failing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutDevice:
    """State of one device in a rollout. `sub`: of its install; `wave` from 1, 0 = it is a control only."""

    device: str
    wave: int
    state: str
    goal: str
    sub: str = ""
    failure: str = ""
    counter: int = 0
    told_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutStep:
    """One entry of a rollout's history. `by`: a person, or "hub"."""

    seq: int
    at_ms: int
    by: str
    what: str
    why: str
    state: str


class RolloutOperations:
    """Rollouts, named by their id; all but reading takes a key with the scope `operate`."""

    @operation
    def list(self) -> Steps[tuple[Rollout, ...]]:
        """Return the rollouts, newest first."""
        request = Request("GET", build_path(*_PATH), safe=True)
        return read_list(Rollout, (yield from fetch_object(request)), "rollouts", request.where)

    @operation
    def get(self, rollout: str) -> Steps[Rollout]:
        """Return one rollout. NotFoundError for an unknown one."""
        return (yield from _fetch_rollout(Request("GET", build_path(*_PATH, rollout), safe=True)))

    @operation
    def devices(self, rollout: str) -> Steps[tuple[RolloutDevice, ...]]:
        """Return the state of every device of a rollout."""
        request = Request("GET", build_path(*_PATH, rollout, "devices"), safe=True)
        return read_list(RolloutDevice, (yield from fetch_object(request)), "devices", request.where)

    @operation
    def history(self, rollout: str) -> Steps[tuple[RolloutStep, ...]]:
        """Return who did what in a rollout and when, oldest first."""
        request = Request("GET", build_path(*_PATH, rollout, "history"), safe=True)
        return read_list(RolloutStep, (yield from fetch_object(request)), "history", request.where)

    @operation
    def start(
        self, model: str, *, to: str = "all", back: str = "", rules: Mapping[str, Any] | None = None
    ) -> Steps[Rollout]:
        """Roll a published version, `NAME@VERSION`, out to devices: `all`, or `class=camera,region=eu|us`.

        `back`: the version to go back to, left out: what most devices run now. `rules`: parameters over their defaults
        (docs/rollout.md). ConflictError if the hub cannot serve it, or an older version lacks its permit.
        """
        asked = {"model": model, "to": to, "back": back, "rules": {**(rules or {})}}
        return (yield from _fetch_rollout(post_json(build_path(*_PATH), asked)))

    @operation
    def pause(self, rollout: str, why: str = "") -> Steps[Rollout]:
        """Pause: no further device is told anything. ConflictError unless it is under way."""
        return (yield from _act(rollout, "pause", why=why))

    @operation
    def resume(self, rollout: str, why: str = "", *, accept: bool = False) -> Steps[Rollout]:
        """Resume. `accept`: the wave passes although the evidence does not decide."""
        return (yield from _act(rollout, "resume", why=why, accept=accept))

    @operation
    def abort(self, rollout: str, why: str = "") -> Steps[Rollout]:
        """Abort: what is not committed is withdrawn."""
        return (yield from _act(rollout, "abort", why=why))

    @operation
    def approve(self, rollout: str, plan: str) -> Steps[Rollout]:
        """Approve the plan with this digest, as one more person."""
        return (yield from _act(rollout, "approve", plan=plan))

    @operation
    def undo(self, rollout: str, why: str = "", *, to_version: int = 0) -> Steps[Rollout]:
        """Go back to the version before, or to a named one, under a permit."""
        return (yield from _act(rollout, "undo", why=why, to_version=to_version))


def _act(rollout: str, action: str, **asked: Any) -> Steps[Rollout]:
    return (yield from _fetch_rollout(post_json(build_path(*_PATH, rollout, action), asked)))


def _fetch_rollout(request: Request) -> Steps[Rollout]:
    return read_value(Rollout, (yield from fetch_object(request)), request.where)


class Rollouts(RolloutOperations, BlockingCalls):
    """Rollouts of a hub; each call blocks until its reply is there."""


class AsyncRollouts(RolloutOperations, AsyncCalls):
    """Rollouts of a hub, on asyncio."""

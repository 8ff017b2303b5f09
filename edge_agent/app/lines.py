"""JSON lines of the agent's stdin: wait for what this device needs to ask its hub, answer every line, log what became.

Rule: an agent that serves answers at once whatever is missing; a run for lines alone first waits, for a limited time.
"""

import asyncio
import sys
from typing import Any

import msgspec

from edge_agent.sources.feed import SampleFeed
from edge_agent.sources.json_lines import JsonLines, LinesResult, read_lines
from policies.model.policy import EscalationMode
from wire.process.logging import JsonLog, safe_name

_POLL_S = 0.05
_NEVER_ASKS = frozenset({EscalationMode.LOCAL_ONLY, EscalationMode.DISABLED})


class LinesOptions(msgspec.Struct, frozen=True):
    """How lines are answered. `wait_s`: for model, policy and link before the first, for corrections after the last."""

    wait_s: float


class AgentPrerequisites(msgspec.Struct, frozen=True):
    """What this device will have beside its model. `policy`: one comes by updates; `link`: it may connect."""

    policy: bool
    link: bool

    def are_met(self, status: dict[str, Any]) -> bool:
        """Whether the agent of this status (`Agent.status`) has all of it, and the link if its policy may ask."""
        if not status["model"] or (self.policy and not status["policy"]):
            return False
        asks = self.link and bool(status["policy"]) and status["mode"] not in _NEVER_ASKS
        return status["link"] == "up" or not asks


async def answer_stdin(
    feed: SampleFeed, needed: AgentPrerequisites, options: LinesOptions, log: JsonLog
) -> LinesResult:
    """Answer the lines of stdin on stdout until they end and no correction is owed, or `wait_s` is over."""

    def write(line: bytes) -> None:
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()

    if not await _wait_until_met(feed, needed, options.wait_s):
        status = feed.service.status()
        log.warning("lines_begin_unready", link=safe_name(status["link"]), model=safe_name(status["model"] or "none"))
    done = await JsonLines(feed, write).run(read_lines(sys.stdin.fileno()), options.wait_s)
    log.info("lines_ended", **msgspec.structs.asdict(done))
    return done


async def _wait_until_met(feed: SampleFeed, needed: AgentPrerequisites, within_s: float) -> bool:
    deadline = asyncio.get_running_loop().time() + within_s
    while not needed.are_met(feed.service.status()):
        if asyncio.get_running_loop().time() >= deadline:
            return False
        await asyncio.sleep(_POLL_S)
    return True

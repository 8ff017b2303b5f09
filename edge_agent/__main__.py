"""Entry point of the agent process: `python -P -m edge_agent --config FILE`, as a service manager starts it.

Imports no command-line packages, to keep the process small. Exit codes: docs/exit-codes.md. JSON log lines go to
stderr; stdout is for `--lines` alone.
"""
# ruff: noqa: E402 - our own packages are imported once it is sure that they are ours

import argparse
import asyncio
import runpy
import sys
from pathlib import Path

runpy.run_path(str(Path(__file__).parents[1] / "wire" / "process" / "packages.py"))["refuse_clashes"]("skerry agent")

from wire.http.deferred_client import defer_http_client

defer_http_client()  # before anything imports aiohttp, which is the API's server

from edge_agent.app.config import AgentConfig, load_config
from edge_agent.app.lines import LinesOptions
from edge_agent.app.process import AgentProcess, StartupState, prepare_startup
from edge_agent.identity.identity import load_identity
from wire.process.daemon import FolderLock, disable_core_dumps, raise_descriptor_limit, take_service_variables
from wire.process.exit_codes import ExitCode
from wire.process.logging import JsonLog
from wire.process.main import run_to_exit

LINES_WAIT_S = 10.0
MAX_WAIT_S = 86_400.0


def main(arguments: list[str] | None = None) -> int:
    """Parse the arguments and run the agent, or only check its configuration; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m edge_agent", description="One device's agent.")
    parser.add_argument("--config", type=Path, help="TOML file; SKERRY_AGENT_... environment variables override it")
    parser.add_argument("--check", action="store_true", help="check configuration, identity, policy, model; then exit")
    parser.add_argument("--lines", action="store_true", help="answer JSON lines from stdin on stdout, then exit")
    parser.add_argument(
        "--wait", type=_parse_seconds, default=LINES_WAIT_S, metavar="S",
        help="with --lines: seconds to wait for the link before the first line, and for corrections after the last",
    )  # fmt: skip
    asked = parser.parse_args(arguments)
    lines = LinesOptions(asked.wait) if asked.lines else None

    def work() -> int:
        config = load_config(asked.config)
        return _check_start(config) if asked.check else _serve_agent(config, lines, asked.config)

    return run_to_exit("skerry agent", work)


def _parse_seconds(text: str) -> float:
    """A number of seconds from 0 to a day; ValueError tells argparse that it is none."""
    seconds = float(text)
    if not 0 <= seconds <= MAX_WAIT_S:
        raise ValueError
    return seconds


def _check_start(config: AgentConfig) -> int:
    """Check configuration, identity, policy and model without starting; prints one line that sums them up."""
    parts = prepare_startup(config)
    standing = parts.standing.policy
    policy = f"policy {standing.name} {standing.version}" if standing else "no policy: nothing may leave"
    model = f"model {parts.runner.manifest.model}" if parts.runner else "no model yet: the first refresh brings it"
    print(f"sound: device {parts.identity.device}, {model}, {policy}")
    return ExitCode.OK


def _serve_agent(config: AgentConfig, lines: LinesOptions | None, file: Path | None) -> int:
    """Run the agent under the lock of its state folder until it is told to stop."""
    log = JsonLog(least=config.log_level)
    log.capture_logging()
    disable_core_dumps()
    raise_descriptor_limit()
    take_service_variables()
    load_identity(Path(config.state))
    with FolderLock(Path(config.state)):
        parts = prepare_startup(config, starting=True)
        asyncio.run(_run_process(config, parts, log, lines=lines, file=file))
    return ExitCode.OK


async def _run_process(
    config: AgentConfig, parts: StartupState, log: JsonLog, *, lines: LinesOptions | None, file: Path | None
) -> None:
    await AgentProcess(config, parts, log, lines=lines, file=file).run()


if __name__ == "__main__":
    sys.exit(main())

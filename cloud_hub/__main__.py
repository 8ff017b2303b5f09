"""Main entry of the hub process (`python -P -m cloud_hub --config FILE`), as a service manager starts it.

Imports no command-line packages. Exit codes: docs/exit-codes.md. JSON log lines on stderr; on stdout only the result of
`--check`.
"""
# ruff: noqa: E402 - our own packages are imported once it is sure that they are ours

import argparse
import asyncio
import runpy
import sys
from pathlib import Path

runpy.run_path(str(Path(__file__).parents[1] / "wire" / "process" / "packages.py"))["refuse_clashes"]("skerry hub")

from cloud_hub.region.membership import RegionMembership
from cloud_hub.runtime.bootstrap import HubState, hold_place, open_state
from cloud_hub.runtime.broker import choose_port, find_program
from cloud_hub.runtime.config import HubConfig, load_hub_config
from cloud_hub.runtime.engines import open_engines
from cloud_hub.runtime.process import HubProcess
from wire.process.daemon import FolderLock, disable_core_dumps, raise_descriptor_limit, take_service_variables
from wire.process.exit_codes import ExitCode
from wire.process.logging import JsonLog
from wire.process.main import run_to_exit


def main(arguments: list[str] | None = None) -> int:
    """Run the hub, or check its configuration; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m cloud_hub", description="One hub and its broker.")
    parser.add_argument("--config", type=Path, help="TOML file; SKERRY_HUB_... variables override it")
    parser.add_argument("--check", action="store_true", help="check everything that a start needs, then exit")
    asked = parser.parse_args(arguments)

    def work() -> int:
        config = load_hub_config(asked.config)
        return _check_config(config) if asked.check else _serve_hub(config, asked.config)

    return run_to_exit("skerry hub", work)


def _check_config(config: HubConfig) -> int:
    """Check everything that a start needs; creates a missing state folder, as the first start would. Serves nothing."""
    with FolderLock(config.state_dir().prepare().root):
        open_state(config)
        if config.broker.start:
            find_program(config.broker.program)
            choose_port(config.broker.host, config.broker.port)
        engines = open_engines(config, JsonLog())
    print(f"sound: hub {config.hub.name}, models {', '.join(engine.card.name for engine in engines)}")
    for engine in engines:
        engine.stop()
    return ExitCode.OK


def _serve_hub(config: HubConfig, file: Path | None) -> int:
    log = JsonLog()
    log.capture_logging()
    disable_core_dumps()
    raise_descriptor_limit()
    take_service_variables()
    with FolderLock(config.state_dir().prepare().root):
        ground = open_state(config)
        with hold_place(config) as place:
            asyncio.run(_run_hub(config, ground, place, log, file))
    return ExitCode.OK


async def _run_hub(
    config: HubConfig, ground: HubState, place: RegionMembership | None, log: JsonLog, file: Path | None
) -> None:
    if config.broker.start:
        find_program(config.broker.program)  # fail before loading the models, which takes seconds
    engines = open_engines(config, log)
    try:
        await HubProcess(config, ground, engines, log, place, file=file).run()
    finally:
        for engine in engines:
            engine.stop()


if __name__ == "__main__":
    sys.exit(main())

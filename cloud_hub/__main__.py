"""Main entry of the hub process (`python -m cloud_hub --config FILE`), as a service manager starts it.

Imports no command-line packages. Exit codes: docs/exit-codes.md. JSON log lines on stderr; on stdout only the result of
`--check`.
"""

import argparse
import asyncio
import sys
from pathlib import Path

from cloud_hub.runtime.bootstrap import Ground, lay
from cloud_hub.runtime.broker import choose_port, find_program
from cloud_hub.runtime.config import HubConfig, load
from cloud_hub.runtime.process import Process, open_engines
from wire.process.daemon import Lock, no_core_dumps
from wire.process.exit_codes import Exit, run_to_exit
from wire.process.logging import Log


def main(arguments: list[str] | None = None) -> int:
    """Run the hub, or check its configuration; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m cloud_hub", description="One hub and its broker.")
    parser.add_argument("--config", type=Path, help="TOML file; SKERRY_HUB_... variables override it")
    parser.add_argument("--check", action="store_true", help="check everything that a start needs, then exit")
    asked = parser.parse_args(arguments)

    def work() -> int:
        config = load(asked.config)
        return _check(config) if asked.check else _serve(config)

    return run_to_exit("skerry hub", work)


def _check(config: HubConfig) -> int:
    """Check everything that a start needs; creates a missing state folder, as the first start would. Serves nothing."""
    with Lock(config.state_dir().prepare().root):
        lay(config)
        if config.broker.start:
            find_program(config.broker.program)
            choose_port(config.broker.host, config.broker.port)
        engines = open_engines(config)
    print(f"sound: hub {config.hub.name}, models {', '.join(engine.card.name for engine in engines)}")
    for engine in engines:
        engine.stop()
    return Exit.OK


def _serve(config: HubConfig) -> int:
    log = Log()
    log.take_over()
    no_core_dumps()
    with Lock(config.state_dir().prepare().root):
        ground = lay(config)
        asyncio.run(_run(config, ground, log))
    return Exit.OK


async def _run(config: HubConfig, ground: Ground, log: Log) -> None:
    if config.broker.start:
        find_program(config.broker.program)  # fail before loading the models, which takes seconds
    engines = open_engines(config)
    try:
        await Process(config, ground, engines, log).run()
    finally:
        for engine in engines:
            engine.stop()


if __name__ == "__main__":
    sys.exit(main())

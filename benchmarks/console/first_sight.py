"""From a clone to the first escalated answer seen in the browser, by what README says: two commands.

`python -m benchmarks console --only first_sight`. A clone of the last commit in an empty folder; `make demo
ARGS=--open` sets up everything with its own `.venv`, trains, starts and opens the console in the browser that `BROWSER`
names: Chromium, which waits for the first question that the hub has answered.
"""

import asyncio
import os
import shlex
import signal
import sys
import time
from pathlib import Path

from benchmarks.harness.figures import Figure
from tests.live.doubles.chromium import find_chromium, open_chromium
from wire.process.exit_codes import ExitCode, ExitError

ROOT = Path(__file__).parents[2]
COMMANDS = 2  # git clone ... && cd skerry; make demo ARGS=--open
PATIENCE_S = 900.0
AIM_S = 240.0


async def run_benchmark(folder: Path, _bundle: Path) -> list[Figure]:
    """Seconds from the clone to the answer on the page, and how many commands that took."""
    program = find_chromium()
    if program is None:
        raise ExitError(ExitCode.NOT_FOUND, "Chromium is not installed: ./setup.sh dev installs it")
    told, clone = folder / "address", folder / "skerry"
    began = time.monotonic()
    words = ("clone", "--quiet", "--depth", "1", f"file://{ROOT}", str(clone))
    if await (await asyncio.create_subprocess_exec("git", *words)).wait():
        raise ExitError(ExitCode.INTERNAL, "git clone failed")
    script = f"import pathlib, sys; pathlib.Path({str(told)!r}).write_text(sys.argv[1])"
    browser = shlex.join([sys.executable, "-c", script]) + " %s"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SKERRY_", "VIRTUAL_ENV"))}
    environment |= {"BROWSER": browser, "XDG_CACHE_HOME": str(folder / "cache"), "CI": "1"}
    demo = await asyncio.create_subprocess_exec(
        *("make", "demo", "ARGS=--open"),
        cwd=clone,
        env=environment,
        stdout=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        address = await _wait_address(told, demo)
        opened_s = time.monotonic() - began
        async with open_chromium(program) as chromium:
            visitor = await chromium.visit(address.partition("/enter")[0])
            await visitor.page.goto(address)
            await visitor.page.locator(".state.answered").first.wait_for(timeout=PATIENCE_S * 1000)
            seen_s = time.monotonic() - began
    finally:
        os.killpg(demo.pid, signal.SIGTERM)
        await demo.wait()
    terms = (f"{COMMANDS} commands: git clone, make demo ARGS=--open; the console was open after {opened_s:.0f} s",)
    return [
        Figure("clone to a first escalated answer seen in the browser", seen_s, "s", AIM_S, terms=terms),
        Figure("the same: commands of README", COMMANDS, "commands", 3),
    ]


async def _wait_address(told: Path, demo: asyncio.subprocess.Process) -> str:
    """The address that the demo opened a browser with."""
    deadline = time.monotonic() + PATIENCE_S
    while not told.exists():
        if demo.returncode is not None or time.monotonic() > deadline:
            raise ExitError(ExitCode.INTERNAL, f"the demo opened no browser (exit code {demo.returncode})")
        await asyncio.sleep(0.1)
    return told.read_text(encoding="utf-8")

"""A server of a language model that the hub starts itself: its process group, its restarts, its end.

Rule: an engine never outlives the hub, however the hub ends. A guard process stands between them: it ends the engine's
whole process group once the pipe to the hub closes, and what the engine leaves behind once the engine ends.
"""

import asyncio
import contextlib
import os
import random
import re
import socket
import sys
from collections import deque
from collections.abc import Callable, Sequence

from cloud_hub.llm.settings import LlmSettings
from policies.monitoring.backoff import compute_delay
from wire.process.logging import JsonLog, safe_name, safe_text

PORT_MARK = "{port}"
GRACE_S = 5.0  # between asking an engine to end and killing it
STABLE_S = 60.0  # after this time the wait before a restart begins anew
FIRST_WAIT_S = 1.0
LONGEST_WAIT_S = 60.0
_POLL_S = 0.1
_LINE_BYTES = 4096
_LAST_LINES = 400  # among them is the first error of an engine that fails at its start, whatever it says while it ends
# An exception's own line in a traceback, or what argparse says.
_ERROR = re.compile(r"(?:\b[A-Z]\w*(?:Error|Exception)|\berror): \S.*")
# The guard: a fresh interpreter with one thread. It asks the kernel to end the engine with it (PR_SET_PDEATHSIG = 1).
_GUARD = """
import ctypes, os, select, signal, subprocess, sys, time
grace_s = float(sys.argv[1])
def follow():
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, 9)
def end(number):
    try:
        os.killpg(engine.pid, number)
    except (ProcessLookupError, PermissionError):
        pass
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
def restore():
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    follow()
try:
    engine = subprocess.Popen(sys.argv[2:], stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=restore)
except OSError as error:
    sys.exit(f"{sys.argv[2]}: {error.strerror}")
while engine.poll() is None:
    if select.select([0], [], [], 0.1)[0]:
        end(signal.SIGTERM)
        until = time.monotonic() + grace_s
        while engine.poll() is None and time.monotonic() < until:
            time.sleep(0.02)
        break
end(signal.SIGKILL)
code = engine.wait()
sys.exit(code if code >= 0 else 128 - code)
"""


def choose_port(port: int) -> int:
    """Return `port`, or a free one of this machine for 0."""
    if port:
        return port
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def find_reason(lines: Sequence[str]) -> str:
    """Return what a program's last lines say of its end: the first error, as causes come first; else the last line."""
    errors = (found.group() for line in lines if (found := _ERROR.search(line)))
    return next(errors, lines[-1] if lines else "")


class EngineProcess:
    """The engine of a model whose settings have a `command`. `is_ready`: whether its replica is.

    `starts`: how often it was started; `pid` of its guard, 0 while there is none.
    """

    def __init__(self, settings: LlmSettings, key: str, is_ready: Callable[[], bool], log: JsonLog) -> None:
        self.port = choose_port(settings.port)
        self.starts = 0
        self._settings = settings
        self._key = key
        self._is_ready = is_ready
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self._last_lines: deque[str] = deque(maxlen=_LAST_LINES)
        self._late = ""

    @property
    def pid(self) -> int:
        """Process id of the guard."""
        return self._process.pid if self._process is not None and self._process.returncode is None else 0

    async def run(self) -> None:
        """Keep the engine running until cancelled: one that ends is started again after a jittered wait."""
        attempt = 0
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            code = await self._run_once()
            attempt = 0 if loop.time() - began > STABLE_S else attempt + 1
            wait_s = compute_delay(attempt, random.random(), FIRST_WAIT_S, LONGEST_WAIT_S)  # noqa: S311 - jitter
            self._log.warning(
                "llm_engine_died",
                model=safe_name(self._settings.name),
                code=code,
                wait_s=round(wait_s, 1),
                said=safe_text(self._late + find_reason(self._last_lines)),
            )
            await asyncio.sleep(wait_s)

    async def _run_once(self) -> int:
        """Start the engine and wait for its end: its exit code. One that is not ready within `start_s` is ended."""
        self._last_lines.clear()
        self._late = ""
        self.starts += 1
        process = self._process = await self._launch()
        reader = asyncio.create_task(self._read_lines(process), name="llm-engine-log")
        try:
            await self._watch_start(process)
            return await process.wait()
        finally:
            if process.stdin is not None:
                process.stdin.close()
            # The guard ends by itself, and a cancelled hub must wait for it: nothing may outlive the hub.
            await asyncio.shield(process.wait())
            await asyncio.shield(reader)

    async def _launch(self) -> asyncio.subprocess.Process:
        words = [word.replace(PORT_MARK, str(self.port)) for word in self._settings.command]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SKERRY_")}
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", "-c", _GUARD, str(GRACE_S), *words),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**kept, **({"VLLM_API_KEY": self._key} if self._key else {})},
            start_new_session=True,
        )

    async def _watch_start(self, process: asyncio.subprocess.Process) -> None:
        """Wait until the engine is ready or has ended; end it if that takes longer than `start_s`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.start_s):
                while process.returncode is None and not self._is_ready():  # noqa: ASYNC110 - either may come
                    await asyncio.sleep(_POLL_S)
                return
        self._late = f"not ready within {self._settings.start_s:g} s: "
        if process.stdin is not None:
            process.stdin.close()

    async def _read_lines(self, process: asyncio.subprocess.Process) -> None:
        """Read what the engine says without end, and keep the last lines: a full pipe would block it."""
        rest = b""
        while process.stdout is not None:
            chunk = await process.stdout.read(_LINE_BYTES)
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines if chunk else [rest]:
                text = line[:_LINE_BYTES].decode("utf-8", "replace").strip()
                if text:
                    self._last_lines.append(text[:300])
            rest = rest[:_LINE_BYTES]
            if not chunk:
                return

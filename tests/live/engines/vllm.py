"""vLLM as a process of its own, or as the hub starts it, and what it counted itself."""

import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import NamedTuple
from urllib.request import urlopen

from benchmarks.harness.environments import VLLM
from simulations.processes import find_free_port
from tests.live.engines.llama import CONTEXT_TOKENS

MODEL = "llama"
CHECK = "chat/completions"  # of readiness; a first prompt of one token ended the worker of this build with SIGILL
START_S = 420.0
BLOCK_TOKENS = 128  # of the prefix cache of vLLM's build for CPUs
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


def describe_environment() -> dict[str, str]:
    """Return the environment of a server: this one's, without what is the tests' own.

    vLLM chooses its threads itself.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SKERRY_", "OMP_"))}
    return {**kept, **ENVIRONMENT}


class EngineCounts(NamedTuple):
    """What a server counted since it was started; `hits`: tokens of prompts out of its prefix cache."""

    requests: int
    prompt: int
    hits: int
    generated: int


def vllm_command(model: Path, port: str, *options: str) -> list[str]:
    """How vLLM is started; its `vllm serve` asks for a package that the build for CPUs does not have."""
    sizes = ("--max-model-len", str(CONTEXT_TOKENS), "--enforce-eager")
    named = ("--model", str(model), "--served-model-name", MODEL, "--enable-prompt-tokens-details")
    program = (str(VLLM.python), "-m", "vllm.entrypoints.openai.api_server")
    return [*program, *named, *sizes, "--host", "127.0.0.1", "--port", port, *options]


def read_counts(url: str) -> EngineCounts:
    """Read a server's own counters."""
    with urlopen(f"{url}/metrics", timeout=60) as response:
        text = response.read().decode()

    def total(name: str) -> int:
        found = re.findall(rf"^vllm:{name}_total(?:\{{[^}}]*\}})? (\S+)$", text, re.MULTILINE)
        assert found, f"vLLM tells no {name}"
        return int(sum(map(float, found)))

    requests = total("request_success")
    return EngineCounts(
        requests, *(total(each) for each in ("prompt_tokens", "prompt_tokens_cached", "generation_tokens"))
    )


class VllmServer:
    """One server in a process group of its own."""

    def __init__(self, model: Path, log: Path) -> None:
        port = find_free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._log = log
        with log.open("w") as file:
            self._process = subprocess.Popen(
                vllm_command(model, str(port)), stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                env=describe_environment(), start_new_session=True,
            )  # fmt: skip

    def wait_ready(self) -> None:
        until = time.monotonic() + START_S
        while not self._answers():
            assert self._process.poll() is None, self._log.read_text()[-3000:]
            assert time.monotonic() < until, self._log.read_text()[-3000:]
            time.sleep(0.5)

    def kill(self) -> None:
        """Kill it as the kernel would, with every process that it started."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _answers(self) -> bool:
        try:
            with urlopen(f"{self.url}/v1/models", timeout=10) as response:
                return bool(response.status == 200)
        except OSError:
            return False

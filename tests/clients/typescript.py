"""The TypeScript client's workspace: its packages as locked, in `.cache/typescript`, installed once.

`python -m tests.clients.typescript` (`make client-types`) writes the types of the present routes.
"""

import asyncio
import shutil
import subprocess
import tempfile
from hashlib import sha256
from pathlib import Path

import pytest

from cloud_hub.database.parts import DatabaseUrls
from tests import ROOT
from tests.clients.calls import address_of
from tests.cloud_hub.doubles.job_site import job_site
from tests.edge_agent.doubles.api_double import MemoryAgent, serve_api

SOURCE = ROOT / "clients" / "typescript"
WORKSPACE = ROOT / ".cache" / "typescript"
NPM_TIMEOUT_S = 600
FILES = ("package.json", "package-lock.json", "tsconfig.json", "generate.mjs")


def prepare_workspace() -> Path:
    """The workspace with the client's present sources; packages come from npm's registry if the lock has changed."""
    if shutil.which("npm") is None:
        pytest.skip("node is not installed: apt-get install nodejs npm (20 or newer)")
    WORKSPACE.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        shutil.copy(SOURCE / name, WORKSPACE)
    shutil.rmtree(WORKSPACE / "src", ignore_errors=True)
    shutil.copytree(SOURCE / "src", WORKSPACE / "src")
    digest, stamp = sha256((SOURCE / "package-lock.json").read_bytes()).hexdigest(), WORKSPACE / "stamp"
    if not stamp.exists() or stamp.read_text() != digest:
        run("npm", "ci", "--no-audit", "--no-fund", "--loglevel=error")
        stamp.write_text(digest)
    return WORKSPACE


def run(*words: str) -> str:
    """What a command in the workspace says."""
    done = subprocess.run(
        words,
        cwd=WORKSPACE,
        capture_output=True,
        text=True,
        timeout=NPM_TIMEOUT_S,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


async def write_types(folder: Path, into: Path) -> None:
    """Write the types of both servers' documents; the servers' own state lies in `folder`."""
    prepare_workspace()
    memory = MemoryAgent()
    memory.mode = "no model"  # what feedback takes is then of any model
    async with serve_api(memory) as session, job_site(folder, DatabaseUrls(folder)) as site:
        await asyncio.to_thread(run, "node", "generate.mjs", address_of(session), site.api.url, str(into))


def compile_client() -> None:
    """Compile the client with tsc, strictly, into `dist`."""
    run(str(prepare_workspace() / "node_modules" / ".bin" / "tsc"))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        asyncio.run(write_types(Path(place), SOURCE / "src"))

"""Tests that the signing commands need no network and few of the hub's dependencies."""

import json
import os
import subprocess
import sys

import pytest

from models.signing.request import RepositoryState, dump_state, load_request
from models.signing.roles import ONLINE
from tests import ROOT
from tests.models.doubles.keys import MemoryKeyring, install_request

# Python, ours, what that machine is said to need, and (second set) what these bring along; and no socket at all.
BARE = """
import importlib.abc, importlib.metadata, sys
ALLOWED = {"tuf", "securesystemslib", "cryptography", "typer", "rich", "skerry", "models", "wire"}
ALLOWED |= {"click", "shellingham", "markdown_it", "mdurl", "pygments", "cffi", "_cffi_backend", "urllib3",
    "typing_extensions", "annotated_doc", "pydantic", "pydantic_core", "annotated_types", "typing_inspection"}
FOREIGN = {*importlib.metadata.packages_distributions(), "edge_agent", "cloud_hub", "policies"} - ALLOWED
class Bare(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in FOREIGN:
            raise ModuleNotFoundError(f"not on this machine: {name}", name=name)
sys.meta_path.insert(0, Bare())
def quiet(event, args):
    if event in ("socket.connect", "socket.bind", "socket.getaddrinfo", "socket.sendto"):
        raise OSError("this machine has no network")
sys.addaudithook(quiet)
import json, skerry
for words in json.loads(sys.argv[1]):
    sys.argv = ["skerry", *words]
    try:
        skerry.main()
    except SystemExit as ended:
        if ended.code:
            raise
"""


def bare(*commands):
    """What these command lines print one after the other; the first that fails is the last."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "160", "TERM": "dumb"}
    command = [sys.executable, "-c", BARE, json.dumps(commands, default=str)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def memory():
    return MemoryKeyring()


@pytest.fixture
def hub(tmp_path, memory):
    state = RepositoryState({role: memory.draw(role) for role in (*ONLINE, "keys")})
    (tmp_path / "hub.json").write_bytes(dump_state(state))
    (tmp_path / "passphrase").write_text("a long enough passphrase")
    return tmp_path / "hub.json"


@pytest.mark.further
def test_keys_are_made_shown_and_used_there(tmp_path, memory, hub):
    secret = ("--passphrase-file", tmp_path / "passphrase")
    ring = tmp_path / "ring"
    made = bare(
        ("keys", "init", ring, "--hub", hub, "--small", "--memory", "16", *secret),
        ("keys", "show", ring),
    )
    assert made.returncode == 0, made.stderr
    assert "root-1" in made.stdout
    first = load_request((tmp_path / "ring" / "first.json").read_bytes())
    hub.write_bytes(dump_state(install_request(memory, first)))
    signed = bare(
        ("keys", "renew", "--hub", hub, "--dir", ring, *secret),
        ("keys", "sign", ring / "renew.json", "--dir", ring, "--yes", *secret),
    )
    assert signed.returncode == 0, signed.stderr
    assert "at the hub: skerry repository install" in signed.stdout


@pytest.mark.further
def test_this_machine_really_has_nothing_else():
    """Check of the probe itself: the hub's dependencies cannot be imported there."""
    done = bare(("repository", "status"))
    assert done.returncode != 0
    assert "has no hub" in done.stderr

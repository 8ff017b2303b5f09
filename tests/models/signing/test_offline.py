"""Tests that the signing commands need no network and few of the hub's dependencies."""

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
import skerry
skerry.main()
"""


def bare(*words):
    environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "160", "TERM": "dumb"}
    command = [sys.executable, "-c", BARE, *map(str, words)]
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


def test_keys_are_made_shown_and_used_there(tmp_path, memory, hub):
    secret = ("--passphrase-file", tmp_path / "passphrase")
    made = bare("keys", "init", tmp_path / "ring", "--hub", hub, "--small", "--memory", 16, *secret)
    assert made.returncode == 0, made.stderr
    shown = bare("keys", "show", tmp_path / "ring")
    assert shown.returncode == 0, shown.stderr
    assert "root-1" in shown.stdout
    first = load_request((tmp_path / "ring" / "first.json").read_bytes())
    hub.write_bytes(dump_state(install_request(memory, first)))
    renewed = bare("keys", "renew", "--hub", hub, "--dir", tmp_path / "ring", *secret)
    assert renewed.returncode == 0, renewed.stderr
    signed = bare("keys", "sign", tmp_path / "ring" / "renew.json", "--dir", tmp_path / "ring", "--yes", *secret)
    assert signed.returncode == 0, signed.stderr
    assert "at the hub: skerry repository install" in signed.stdout


def test_this_machine_really_has_nothing_else():
    """Check of the probe itself: the hub's dependencies cannot be imported there."""
    done = bare("repository", "status")
    assert done.returncode != 0
    assert "cloud_hub" in done.stderr

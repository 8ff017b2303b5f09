"""Which code is mutated, and which folder's tests are asked first."""

import subprocess
from pathlib import Path

from tests import ROOT

# The cores, policies, sealing, ledger, rollout and update machines: what decides, and what evidence is made of.
SCOPE = (
    "edge_agent/question/*.py",
    "edge_agent/update/machine.py",
    "edge_agent/update/transitions.py",
    "cloud_hub/core/*.py",
    "cloud_hub/security/envelopes.py",
    "cloud_hub/rollout/machine.py",
    "cloud_hub/rollout/progress.py",
    "cloud_hub/rollout/dispatch.py",
    "policies/decisions/*.py",
    "policies/language/*.py",
    "policies/model/*.py",
    "policies/monitoring/*.py",
    "policies/rollout_rules/*.py",
    "policies/serving/*.py",
    "wire/ledger/*.py",
    "wire/protocol/*.py",
)


def list_files() -> list[Path]:
    return sorted(path for pattern in SCOPE for path in ROOT.glob(pattern) if path.name != "__init__.py")


def folder_of_tests(file: str) -> str:
    """The folder whose tests should notice a fault of this file."""
    folder = Path("tests", file).parent
    while not (ROOT / folder).is_dir():
        folder = folder.parent
    return str(folder)


def list_tree(root: Path) -> list[str]:
    """The files that git knows or would add, as they are now."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        check=True,
    )
    return sorted(name for name in listed.stdout.decode().split("\0") if name and (root / name).is_file())

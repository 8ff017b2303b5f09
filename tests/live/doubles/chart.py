"""The chart of deploy/helm, rendered by the real helm, and what checks it; the tools install themselves once."""

import importlib
import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests import ROOT

HELM = ROOT / "deploy" / "helm"
CHART = HELM / "skerry"
EXAMPLES = sorted((CHART / "examples").glob("*.yaml"))
RELEASES = ("1.29", "1.33", "1.37")
NAMESPACE = "edge"
Document = dict[str, Any]


@cache
def tools() -> Any:
    """Paths of helm, of a Python with the validator, and of hadolint."""
    sys.path.insert(0, str(HELM))
    try:
        return importlib.import_module("tools").ensure_tools()
    finally:
        sys.path.remove(str(HELM))


def helm(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run helm; it asks no cluster: `lint` and `template` never do."""
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(ROOT / ".cache" / "chart")}
    return subprocess.run(
        [tools().helm, *words], capture_output=True, text=True, check=False, env=environment, timeout=60
    )


def template(values: Path, *more: str, name: str = "skerry") -> str:
    """The manifests of a release."""
    done = helm("template", name, CHART, "--namespace", NAMESPACE, "--values", values, *more)
    assert done.returncode == 0, done.stderr
    return done.stdout


def render(values: Path, *more: str) -> list[Document]:
    """The documents of a release named skerry."""
    return [document for document in yaml.safe_load_all(template(values, *more)) if document]


def refusal(values: Path, *more: str) -> list[str]:
    """The lines in which helm says what is wrong with values, and that it renders nothing."""
    done = helm("template", "skerry", CHART, "--values", values, *more)
    assert done.returncode != 0
    assert done.stdout == ""
    lines = [line.strip() for line in done.stderr.splitlines()]
    return [line for line in lines if line.startswith("- ") and not line.endswith("validation failed")]


def validate(files: list[Path]) -> list[Document]:
    """What the validator says of each document of rendered files: by what it was checked, and its faults."""
    words = [tools().python, HELM / "validate.py", ",".join(RELEASES), *files]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode in (0, 1), done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def pick(documents: list[Document], kind: str, name: str = "skerry") -> Document:
    """The one document of a kind and name."""
    (found,) = [each for each in documents if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found

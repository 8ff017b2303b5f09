"""The chart's files agree with the code: its schema with the hub's configuration, its page with its examples."""

import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests import ROOT
from tests.blocks import blocks

HELM = ROOT / "deploy" / "helm"
EXAMPLES = sorted((HELM / "skerry" / "examples").glob("*.yaml"))
POD_USER = 10001
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to other users")


@pytest.fixture
def volume() -> Iterator[Path]:
    """A state volume of the node: a folder of root in a folder that every user may enter."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        yield Path(made)


def prepare(volume: Path) -> subprocess.CompletedProcess[str]:
    """Run the init container's script as the pod's user on a volume."""
    template = (HELM / "skerry" / "templates" / "configmap.yaml").read_text()
    lines = [line for line in template.partition("  prepare: |\n")[2].splitlines() if not line.startswith("{{-")]
    script = "\n".join(line for line in lines if "{{" not in line).replace("/var/lib/skerry", str(volume))
    return subprocess.run(
        ["sh", "-c", script],
        user=POD_USER,
        group=POD_USER,
        extra_groups=[],
        capture_output=True,
        text=True,
        check=False,
    )


def give_to(user: int, group: int, folder: Path, mode: int) -> None:
    """Give a folder and all that it holds to a user and group; files lose the permission to execute."""
    for path in (folder, *folder.rglob("*")):
        os.chown(path, user, group)
        path.chmod(mode if path.is_dir() else mode & 0o666)


def assert_prepared(volume: Path) -> None:
    (state,) = volume.iterdir()
    assert (state / "pki" / "ca.key").read_text() == "key"
    for path in (state, *state.rglob("*")):
        assert path.stat().st_uid == POD_USER
        assert path.stat().st_mode & 0o077 == 0


def restore_state(volume: Path) -> None:
    (volume / "hub" / "pki").mkdir(parents=True)
    (volume / "hub" / "pki" / "ca.key").write_text("key")


@as_root
def test_a_pod_starts_again_and_again_on_a_state_that_another_user_owns(volume):
    """A restored volume: root owns the files, and `fsGroup` lets the pod's group read and write them."""
    restore_state(volume)
    give_to(0, POD_USER, volume, 0o770)
    for _ in range(2):
        assert prepare(volume).returncode == 0
        assert_prepared(volume)


@as_root
def test_a_start_that_ended_while_it_copied_the_state_loses_nothing(volume):
    restore_state(volume)
    give_to(POD_USER, POD_USER, volume, 0o700)
    (volume / "hub").rename(volume / "hub.former")
    (volume / "hub.own").mkdir()
    assert prepare(volume).returncode == 0
    assert_prepared(volume)


@as_root
@pytest.mark.parametrize("restored", [False, True])
def test_a_node_folder_that_the_pod_may_not_use_is_one_line_with_the_remedy(volume, restored):
    """hostPath: `fsGroup` does not apply, and the folder is root's."""
    if restored:
        restore_state(volume)
        give_to(0, 0, volume / "hub", 0o700)
    done = prepare(volume)
    assert done.returncode == 1
    assert "chown -R 10001:10001" in done.stderr.splitlines()[-1]


@as_root
def test_a_node_folder_that_was_given_to_the_pods_user_serves_every_start(volume):
    restore_state(volume)
    give_to(POD_USER, POD_USER, volume, 0o755)
    for _ in range(2):
        assert prepare(volume).returncode == 0
        assert_prepared(volume)


def test_the_schema_of_the_values_is_that_of_the_hubs_configuration():
    sys.path.insert(0, str(HELM))
    try:
        module = importlib.import_module("values_schema")
    finally:
        sys.path.remove(str(HELM))
    wanted = module.render_schema()
    assert (HELM / "skerry" / "values.schema.json").read_text() == wanted, "python deploy/helm/values_schema.py"


def test_the_values_shown_on_the_page_are_the_examples():
    shown = {block.mark: block.text for block in blocks(ROOT / "docs" / "kubernetes.md") if block.language == "yaml"}
    assert shown == {path.stem: path.read_text() for path in EXAMPLES}


def test_the_chart_has_the_version_of_the_program():
    chart = yaml.safe_load((HELM / "skerry" / "Chart.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert chart["version"] == chart["appVersion"] == project["version"]


def test_the_schema_knows_every_value_and_no_other():
    values = yaml.safe_load((HELM / "skerry" / "values.yaml").read_text())
    schema = json.loads((HELM / "skerry" / "values.schema.json").read_text())
    assert set(values) == set(schema["properties"]) - {"global"}  # helm's own


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_says_what_it_is(path):
    assert re.match(r"# \w[^\n]+\.\n", path.read_text())

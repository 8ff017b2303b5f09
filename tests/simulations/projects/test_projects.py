"""`skerry new` and `skerry up` without processes: what is written, what a project file may say, and what is refused."""

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from policies.analysis.check import check_documents
from policies.language.document import parse_policy
from simulations.processes import ProcessHarness
from simulations.projects.project_file import PROJECT_FILE, Project, read_project
from simulations.projects.stage import await_language_models, clear_state, is_made, make_missing
from simulations.projects.templates import ProjectKind, write_project
from tests import ROOT
from tests.blocks import blocks
from tests.in_process import skerry
from wire.process.exit_codes import ExitCode, ExitError

EXAMPLES = sorted(path.parent for path in (ROOT / "examples").glob(f"*/{PROJECT_FILE}"))
DEVICE = '[[device]]\nname = "a"\nbundle = "bundle"\npolicy = "policy.toml"\n'


@pytest.mark.parametrize("kind", ProjectKind)
def test_a_new_project_is_whole_and_each_of_its_files_is_sound(kind, tmp_path):
    done = skerry("new", str(tmp_path / "line-7"), "--kind", kind.value)
    assert done.returncode == 0, done.stderr
    assert "skerry up" in done.stdout
    folder = tmp_path / "line-7"
    project = read_project(folder)
    policy = parse_policy((folder / project.device[0].policy).read_text()).compile()
    assert policy.name == project.name == "line-7"
    for path in folder.glob("*.py"):
        ast.parse(path.read_text())
    for path in folder.iterdir():
        assert not {word for word in ("NAME", "ISSUED", "EXPIRES", "SAMPLE") if word in path.read_text()}, path.name
    assert {"README.md", "app.py", "test_project.py", ".gitignore"} <= {path.name for path in folder.iterdir()}


def test_a_new_project_says_what_it_wrote_as_json(tmp_path):
    told = json.loads(skerry("new", str(tmp_path / "p"), "--kind", "text", "--json").stdout)
    assert (told["kind"], "skerry.toml" in told["files"]) == ("text", True)


@pytest.mark.parametrize("name", ["Line", "a b", "ä", "a" * 41, "."])
def test_a_name_that_cannot_be_one_is_refused(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = skerry("new", name)
    assert done.returncode == ExitCode.USAGE
    assert done.stderr.startswith("skerry: ")


def test_a_folder_that_holds_something_is_left_alone(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "mine.txt").write_text("mine")
    with pytest.raises(ExitError, match="is there already"):
        write_project(folder, ProjectKind.TABLE)
    assert [path.name for path in folder.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (None, "no skerry.toml in it; `skerry new NAME` makes a project"),
        ("name = ", "skerry.toml: "),
        ('name = "p"', "device: field required"),
        (f'name = "P"\n{DEVICE}', "name: string should match pattern"),
        (f'name = "p"\ncolour = 1\n{DEVICE}', "colour: extra inputs are not permitted"),
        (f'name = "p"\n{DEVICE}shape = 1\n', "device.0.shape: extra inputs"),
        ('name = "p"\ndevice = []\n', "device: tuple should have at least 1 item"),
    ],
)
def test_a_project_file_with_a_fault_is_refused_in_one_line(text, line, tmp_path):
    if text is not None:
        (tmp_path / PROJECT_FILE).write_text(text)
    done = skerry("up", str(tmp_path))
    assert done.returncode == (ExitCode.MISSING if text is None else ExitCode.CONFIG)
    assert done.stderr.count("\n") == 1
    assert line in done.stderr


def project(*prepare: str, makes: tuple[str, ...] = ("made",)) -> Project:
    return Project.model_validate(
        {"name": "p", "prepare": prepare, "makes": makes, "device": ({"name": "a", "bundle": "b", "policy": "c"},)}
    )


async def test_what_is_missing_is_made_by_its_commands_in_their_order(tmp_path):
    said: list[str] = []
    one = project("touch first", "mv first made")
    assert not is_made(one, tmp_path)
    await make_missing(one, tmp_path, said.append)
    assert is_made(one, tmp_path)
    assert said == ["touch first", "mv first made"]


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("false", "`false` ended with 1"),
        ("true", "made: not there after all"),
        ("no-such-program-x", "no such program"),
    ],
)
async def test_a_command_that_fails_ends_the_run_with_what_it_was(command, line, tmp_path):
    with pytest.raises(ExitError, match=line):
        await make_missing(project(command), tmp_path, lambda _: None)


class LoadingHub(ProcessHarness):
    """A hub whose language model is looked at so many times before it is ready."""

    looks = 2

    async def call_admin(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        self.looks -= 1
        replica = {"why": "no completion of one token: ClientConnectorError"}
        return {"models": [{"model": "chat", "ready": self.looks < 0, "replicas": [replica]}]}


async def test_the_program_waits_for_the_language_models_and_says_so(tmp_path, monkeypatch):
    said: list[str] = []
    await await_language_models(LoadingHub(tmp_path), said.append)
    assert said == ["waits for chat (no completion of one token: ClientConnectorError)"]
    monkeypatch.setattr("simulations.projects.stage.MODEL_START_S", 0.0)
    with pytest.raises(ExitError, match=r"not ready after 0 s: chat \(no completion") as ended:
        await await_language_models(LoadingHub(tmp_path), said.append)
    assert ended.value.code == ExitCode.HUB


def test_each_run_begins_with_an_empty_state(tmp_path):
    (clear_state(tmp_path) / "left").write_text("of the run before")
    assert list(clear_state(tmp_path).iterdir()) == []


def test_the_page_shows_a_project_file_that_is_one(tmp_path):
    [block] = [each for each in blocks(ROOT / "docs" / "projects.md") if each.language == "toml"]
    (tmp_path / PROJECT_FILE).write_text(block.text)
    assert read_project(tmp_path).hub.tables == {"hub": {"name": "plant-hub", "region": "plant-7"}}


def test_the_examples_are_there_and_the_architecture_names_them():
    names = {path.name for path in EXAMPLES}
    assert names >= {"clinic", "factory", "telecom-probe"}
    page = (ROOT / "docs" / "architecture.md").read_text()
    assert "`examples`" in page


@pytest.mark.parametrize("folder", EXAMPLES, ids=lambda path: path.name)
def test_an_example_has_a_readme_of_one_screen_and_policies_that_are_sound(folder: Path):
    one = read_project(folder)
    assert one.name == folder.name
    readme = (folder / "README.md").read_text()
    assert len(readme.splitlines()) <= 50
    assert f"skerry up examples/{folder.name}" in readme
    for device in one.device:
        document = parse_policy((folder / device.policy).read_text())
        assert document.egress.data_class[device.data_class] is True
        assert [each for each in check_documents([document], 20_500) if each.kind == "error"] == []

"""`skerry hub store copy`: what it refuses in one line before it touches anything."""

from pathlib import Path

import pytest

from tests.cloud_hub.cli.test_hub import Person
from tests.examples import further
from wire.process.daemon import FolderLock
from wire.process.exit_codes import ExitCode

NOWHERE = "postgresql+psycopg://hub@127.0.0.1:1/skerry"


@pytest.fixture
def person(tmp_path: Path) -> Person:
    made = Person(tmp_path)
    made.types("init", "--state", str(made.state.root))
    return made


def test_a_hub_that_runs_is_not_copied(person: Person):
    with FolderLock(person.state.root):
        assert person.refused("store", "copy", "--to", NOWHERE) is ExitCode.LOCKED


@pytest.mark.parametrize(
    ("target", "code"),
    [
        ("files", ExitCode.USAGE),
        ("mysql://db/skerry", ExitCode.CONFIG),
        further("no address at all", ExitCode.CONFIG),
        (NOWHERE, ExitCode.SERVER_DOWN),
    ],
)
def test_a_target_that_is_none_is_refused(person: Person, target: str, code: ExitCode):
    assert person.refused("store", "copy", "--to", target) is code
    assert list(person.state.root.glob("hub.db*")) == []


def test_a_folder_without_a_hub_has_nothing_to_copy(tmp_path: Path):
    person = Person(tmp_path)
    person.file.write_text('state = "nowhere"\n')
    assert person.refused("store", "copy", "--to", NOWHERE) is ExitCode.MISSING

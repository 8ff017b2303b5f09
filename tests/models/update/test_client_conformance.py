"""Tests of the executable for the public TUF conformance suite, in this process and as that suite runs it."""

import contextlib
import io
import json
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.models.doubles.mirror import Mirror
from tests.models.doubles.repository import NOW, Repository, days

CLIENT = ROOT / "tests" / "tuf_client"


class Client:
    """`D` and `T` of the command line, and the repository it is pointed at."""

    def __init__(self, folder: Path, repo: Repository, mirror: Mirror) -> None:
        self.metadata, self.targets = folder / "metadata", folder / "targets"
        self.metadata.mkdir()
        self.targets.mkdir()
        self.repo, self.mirror = repo, mirror
        self.root = folder / "initial_root.json"
        self.root.write_bytes(repo.trusted_root)
        self.before: tuple[str, ...] = ()
        self.as_process = False

    def __call__(self, *arguments: str) -> int:
        """Exit code."""
        words = ["--metadata-dir", str(self.metadata), *arguments]
        code, said = run_process(*self.before, str(CLIENT), *words) if self.as_process else run_here(words)
        assert "Traceback" not in said, said
        assert (code == 0) == (said == ""), said
        return code

    def init(self) -> int:
        return self("init", str(self.root))

    def refresh(self) -> int:
        return self("--metadata-url", f"{self.mirror.url}metadata/", "refresh")

    def download(self, *names: str) -> int:
        wanted = [word for name in names for word in ("--target-name", name)]
        where = ["--target-dir", str(self.targets), "--target-base-url", f"{self.mirror.url}targets/"]
        return self("--metadata-url", f"{self.mirror.url}metadata/", *wanted, *where, "download")

    def trusted(self) -> dict[str, int]:
        """As the suite counts: every `.json` in D is metadata."""
        files = sorted(self.metadata.glob("*.json"))
        return {path.stem: json.loads(path.read_bytes())["signed"]["version"] for path in files}

    def downloaded(self) -> list[bytes]:
        return [path.read_bytes() for path in sorted(self.targets.rglob("*")) if path.is_file()]


def run_process(*command: str) -> tuple[int, str]:
    """This interpreter's folder comes first on the path, for a checkout without `.venv`."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    run = subprocess.run(command, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False)
    return run.returncode, run.stderr


def run_here(words: list[str]) -> tuple[int, str]:
    said, before = io.StringIO(), (sys.argv, sys.path[:])
    sys.argv = [str(CLIENT), *words]
    try:
        with contextlib.redirect_stderr(said):
            code: int = runpy.run_path(str(CLIENT))["main"]()
    finally:
        sys.argv, sys.path[:] = before
    return code, said.getvalue()


@pytest.fixture
def client(tmp_path):
    repo = Repository()
    with Mirror(repo.files) as mirror:
        yield Client(tmp_path, repo, mirror)


def test_the_client_is_executable_and_its_expected_failures_are_listed():
    assert os.access(CLIENT, os.X_OK)
    lines = CLIENT.with_suffix(".xfails").read_text().splitlines()
    assert [line for line in lines if not line.startswith("#")] == []


def test_init_asks_nothing_and_refresh_asks_in_order(client):
    client.as_process = True
    assert client.init() == 0
    assert client.mirror.requests == []
    assert client.refresh() == 0
    assert client.mirror.asked == ["2.root", "timestamp", "2.snapshot", "2.targets"]
    assert client.trusted() == {"root": 1, "snapshot": 2, "targets": 2, "timestamp": 2}
    assert client.downloaded() == []


@pytest.mark.parametrize("harm", ["unsigned", "no version"])
def test_a_first_root_that_is_not_good_stops_every_refresh_before_a_request(client, harm):
    root = json.loads(client.root.read_bytes())
    if harm == "unsigned":
        root["signatures"][0]["sig"] = "00" * 64
    else:
        del root["signed"]["version"]
    client.root.write_text(json.dumps(root))
    client.init()
    assert client.refresh() == 1
    assert client.mirror.requests == []


def test_without_init_nothing_is_trusted(client):
    assert client.refresh() == 1
    assert client.mirror.requests == []


def test_a_refused_refresh_keeps_what_was_verified_before_the_fault(client):
    client.init()
    client.repo.keys["snapshot"] = []
    client.repo.publish_all()
    assert client.refresh() == 1
    assert client.trusted() == {"root": 1, "timestamp": 3}


def test_a_download_refreshes_first_and_a_missing_target_is_a_failure(client):
    client.init()
    assert client.download("nonexistent artifact") == 1
    assert client.trusted() == {"root": 1, "snapshot": 2, "targets": 2, "timestamp": 2}


def test_a_target_is_downloaded_once_and_a_changed_one_takes_its_place(client):
    client.init()
    client.repo.add("path/to/a file.txt", b"one", version=None)
    client.repo.publish_all()
    for _ in range(2):
        assert client.download("path/to/a file.txt") == 0
    assert len([path for path, _ in client.mirror.requests if "targets/" in path]) == 1
    client.repo.add("path/to/a file.txt", b"two", version=None)
    client.repo.publish_all()
    assert client.download("path/to/a file.txt") == 0
    assert client.downloaded() == [b"two"]


def test_a_substituted_target_is_not_kept(client):
    client.init()
    info = client.repo.add("file", b"one", version=None)
    client.repo.publish_all()
    client.repo.files[client.repo.place(info)] = b"bad"
    assert client.download("file") == 1
    assert client.downloaded() == []


def test_several_targets_come_in_order_until_the_first_failure(client):
    client.init()
    for name in "abc":
        client.repo.add(name, name.encode(), version=None)
    client.repo.publish_all()
    assert client.download("b", "missing", "a") == 1
    assert client.downloaded() == [b"b"]
    assert client.download("a", "b", "c") == 0
    assert client.downloaded() == [b"a", b"b", b"c"]


def test_one_client_for_several_targets_asks_for_metadata_once(client):
    client.init()
    client.repo.delegate("A", ["*"])
    for name in "ab":
        client.repo.add(name, name.encode(), "A", version=None)
    client.repo.publish_all("A", "targets")
    assert client.download("a", "b") == 0
    assert client.mirror.asked == ["2.root", "timestamp", "3.snapshot", "3.targets", "1.A"]


@pytest.mark.parametrize("name", ["../../escape", "..", "/etc/escape", "a" * 300, "ü/%2e%2e/x", "?x#y"])
def test_a_target_of_any_name_lands_in_its_folder(client, name):
    client.init()
    client.repo.add(name, b"data", version=None)
    client.repo.publish_all()
    before = {path for path in client.root.parent.rglob("*") if client.metadata not in path.parents}
    client.download(name)  # a server may or may not find such an address
    fresh = {path for path in client.root.parent.rglob("*") if client.metadata not in path.parents} - before
    assert all(path.parent == client.targets for path in fresh)


def test_an_emptied_cache_does_not_bring_an_older_repository_back(client):
    client.init()
    old = client.repo.copy()
    client.repo.publish_all()
    assert client.refresh() == 0
    for path in client.metadata.glob("*.json"):
        path.unlink()
    client.mirror.files = old
    assert client.refresh() == 1
    assert client.trusted() == {"root": 1}
    assert client.init() == 0  # nor does a second init
    assert client.refresh() == 1


def test_a_second_client_on_the_same_folder_is_refused(client):
    from wire.process.daemon import FolderLock  # noqa: PLC0415 - the only test that needs it

    client.init()
    with FolderLock(client.metadata):
        assert client.refresh() == 1
    assert client.refresh() == 0


@pytest.mark.skipif(not shutil.which("faketime"), reason="needs faketime")
@pytest.mark.parametrize(("day", "expected"), [(-400, 0), (1, 0), (8, 1)])
def test_the_clock_may_be_set_by_faketime(client, day, expected):
    client.init()
    client.as_process = True
    client.before = ("faketime", f"{days(day):%Y-%m-%d %H:%M:%S}")
    assert client.refresh() == expected
    assert days(0) == NOW

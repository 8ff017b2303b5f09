"""Public data sets: where they are looked for, and how they are made of what their publishers offer.

The sets here are small ones in the published forms; the digests of the real ones are held by the tests that have them.
"""

import gzip
import hashlib
import io
import os
import pickle
import socket
import struct
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.zoo.packing import digest_content, fetch_dataset, pack_dataset
from models.zoo.sources import DATASETS, MITBIH_RECORDS, DataSet, MissingDataError, find_dataset, locate_dataset
from tests.in_process import set_variables, skerry
from wire.process.exit_codes import ExitCode, ExitError

Publish = Callable[[Path], dict[str, str]]
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def publish_clothing(folder: Path) -> dict[str, str]:
    names = DATASETS["fashion_mnist"].files
    for name in names:
        (folder / name).write_bytes(gzip.compress(name.encode()))
    return {name: digest(name.encode()) for name in names}


def publish_questions(folder: Path) -> dict[str, str]:
    (folder / "data_full.json").write_bytes(b'{"train": []}')
    return {"data_full.json.gz": digest(b'{"train": []}')}


def publish_engines(folder: Path) -> dict[str, str]:
    """An archive in an archive, with blanks at the ends of lines, as NASA has it."""
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w") as archive:
        for name in ("train", "test", "RUL"):
            archive.writestr(f"{name}_FD001.txt", f"1 {name} \n2 {name}  \n")
    name = DATASETS["cmapss_fd001"].urls[0].rpartition("/")[2]
    with zipfile.ZipFile(folder / name, "w") as archive:
        archive.writestr("6. Turbofan/CMAPSSData.zip", inner.getvalue())
    expected = {"train": b"1 train\n2 train\n", "test": b"1 test \n2 test  \n", "RUL": b"1 RUL \n2 RUL  \n"}
    return {f"{name}_FD001.txt.gz": digest(content) for name, content in expected.items()}


def publish_pictures(folder: Path) -> dict[str, str]:
    found = {}
    name = DATASETS["cifar10_jpeg"].urls[0].rpartition("/")[2]
    with zipfile.ZipFile(folder / name, "w") as archive:
        archive.writestr("top/README.md", "not a picture")
        for part in ("test", "train"):
            for label in reversed(CLASSES):
                for number in (2, 1):
                    archive.writestr(f"top/{part}/{label}/000{number}.jpg", f"{part} {label} {number}")
            files = [f"{part} {label} {number}".encode() for label in CLASSES for number in (1, 2)]
            lengths = struct.pack(f"<I{len(files)}I", len(files), *map(len, files))
            labels = bytes(label for label in range(10) for _ in range(2))
            found[f"{part}.c10j.xz"] = digest(b"C10J" + lengths + labels + b"".join(files))
    return found


def publish_heartbeats(folder: Path) -> dict[str, str]:
    whole = hashlib.sha256()
    content = {"records": np.array([f"{record}" for record in MITBIH_RECORDS]), "fs": np.array(128)}
    for record in MITBIH_RECORDS:
        np.save(folder / f"{record}_SIG_II.npy", np.array([0.0014, -0.0015001, record / 1000]))
        np.save(folder / f"{record}_BEAT.npy", np.array([["1", "N"], ["20", "/"]]))
        content[f"sig_{record}"] = np.array([1, -2, record], "<i2")
        content[f"r_{record}"] = np.array([1, 20], "<i4")
        content[f"lab_{record}"] = np.array([ord("N"), ord("/")], "u1")
    for name in sorted(content):
        array = content[name]
        whole.update(f"{name} {array.dtype.str} {array.shape}\0".encode() + array.tobytes())
    return {"mitbih_lead2_128hz.npz": whole.hexdigest()}


PUBLISHED: dict[str, Publish] = {
    "fashion_mnist": publish_clothing,
    "clinc150": publish_questions,
    "cmapss_fd001": publish_engines,
    "cifar10_jpeg": publish_pictures,
    "mitbih_lead2": publish_heartbeats,
}


class CountingHandler(SimpleHTTPRequestHandler):
    """Serves a folder, and counts what it is asked for."""

    asked: list[str]

    def do_GET(self) -> None:
        self.server.asked.append(self.path)  # type: ignore[attr-defined]
        super().do_GET()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ThreadingHTTPServer]:
    """A server of `published` on loopback."""
    (tmp_path / "published").mkdir()
    handler = partial(CountingHandler, directory=str(tmp_path / "published"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as it:
        it.asked = []  # type: ignore[attr-defined]
        threading.Thread(target=it.serve_forever, daemon=True).start()
        yield it
        it.shutdown()


def publish(name: str, folder: Path) -> DataSet:
    """A small set in the form that its publisher has, in a folder of its name."""
    (folder / name).mkdir(parents=True)
    return replace(DATASETS[name], files=PUBLISHED[name](folder / name))


def fetch(known: DataSet, root: Path, server: ThreadingHTTPServer) -> Path:
    return fetch_dataset(known, root, f"http://127.0.0.1:{server.server_port}/", lambda done, whole: None)


def list_files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_every_set_that_a_command_makes_has_a_small_one_here() -> None:
    assert PUBLISHED.keys() == {name for name, known in DATASETS.items() if known.urls}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_set_is_made_of_what_its_publisher_offers(name: str, tmp_path: Path, server: ThreadingHTTPServer) -> None:
    known = publish(name, tmp_path / "published")
    place = fetch(known, tmp_path / "sets", server)
    assert place == tmp_path / "sets" / name
    assert list_files(tmp_path / "sets") == sorted(known.files)
    assert {file: digest_content(place / file) for file in known.files} == dict(known.files)
    assert pack_dataset(known, tmp_path / "published" / name, tmp_path / "by-hand").is_dir()
    assert list_files(tmp_path / "by-hand") == sorted(known.files)


@pytest.mark.further
@pytest.mark.skipif(not os.environ.get("SKERRY_DATA"), reason="SKERRY_DATA names no folder of real data")
@pytest.mark.parametrize("name", PUBLISHED)
def test_the_real_set_has_the_frozen_content(name: str) -> None:
    place = find_dataset(name)
    assert {file: digest_content(place / file) for file in DATASETS[name].files} == DATASETS[name].files


def test_data_that_somebody_changed_on_the_way_is_not_taken(tmp_path: Path, server: ThreadingHTTPServer) -> None:
    known = publish("clinc150", tmp_path / "published")
    (tmp_path / "published" / "clinc150" / "data_full.json").write_bytes(b'{"train": [1]}')
    with pytest.raises(ExitError, match=r"data_full\.json\.gz is not the published one") as refused:
        fetch(known, tmp_path / "sets", server)
    assert refused.value.code == ExitCode.CHECK_FAILED
    assert list_files(tmp_path / "sets") == []


def test_an_array_that_would_run_code_is_refused_unread(tmp_path: Path) -> None:
    known = publish("mitbih_lead2", tmp_path)
    marker = tmp_path / "ran"

    class Hostile:
        def __reduce__(self) -> tuple[Any, tuple[str]]:
            return os.mkdir, (str(marker),)

    with (tmp_path / "mitbih_lead2" / "100_BEAT.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "|O", "fortran_order": False, "shape": (1,)})
        pickle.dump(Hostile(), file)
    with pytest.raises(ExitError) as refused:
        pack_dataset(known, tmp_path / "mitbih_lead2", tmp_path / "sets")
    assert refused.value.code == ExitCode.CHECK_FAILED
    assert not marker.exists()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut off", b"no archive at all"])
def test_an_archive_that_is_none_is_one_line(content: bytes, tmp_path: Path) -> None:
    known = publish("cmapss_fd001", tmp_path)
    next((tmp_path / "cmapss_fd001").iterdir()).write_bytes(content)
    with pytest.raises(ExitError) as refused:
        pack_dataset(known, tmp_path / "cmapss_fd001", tmp_path / "sets")
    assert refused.value.code in {ExitCode.MISSING, ExitCode.CHECK_FAILED}
    assert list_files(tmp_path / "sets") == []


def test_a_file_of_somebody_else_in_the_place_of_a_set_stays_as_it_is(tmp_path: Path) -> None:
    known = publish("clinc150", tmp_path)
    own = tmp_path / "sets" / "clinc150" / "data_full.json.gz"
    own.parent.mkdir(parents=True)
    own.write_bytes(b"my own")
    with pytest.raises(ExitError, match="move it elsewhere") as refused:
        pack_dataset(known, tmp_path / "clinc150", tmp_path / "sets")
    assert refused.value.code == ExitCode.USAGE
    assert own.read_bytes() == b"my own"


def test_a_second_run_asks_for_what_the_first_did_not_get(tmp_path: Path, server: ThreadingHTTPServer) -> None:
    known = publish("mitbih_lead2", tmp_path / "published")
    last = tmp_path / "published" / "mitbih_lead2" / f"{MITBIH_RECORDS[-1]}_BEAT.npy"
    kept = last.read_bytes()
    last.unlink()
    with pytest.raises(ExitError, match="answers 404") as refused:
        fetch(known, tmp_path / "sets", server)
    assert refused.value.code == ExitCode.DOWNLOAD
    last.write_bytes(kept)
    server.asked.clear()  # type: ignore[attr-defined]
    assert fetch(known, tmp_path / "sets", server).is_dir()
    assert server.asked == [f"/mitbih_lead2/{last.name}"]  # type: ignore[attr-defined]
    assert list_files(tmp_path / "sets") == sorted(known.files)


def test_a_machine_without_a_network_says_in_one_line_what_else_to_do(tmp_path: Path) -> None:
    with socket.socket() as closed:  # bound, so that no other takes its port, and not listening
        closed.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{closed.getsockname()[1]}"
        done = skerry("data", "fetch", "clinc150", "--into", str(tmp_path / "sets"), "--mirror", nobody)
    assert (done.returncode, done.stdout) == (ExitCode.DOWNLOAD, "")
    assert done.stderr.count("\n") == 1
    assert "cannot be reached (Connection refused)" in done.stderr
    assert f"download {nobody}/clinc150/data_full.json elsewhere" in done.stderr
    assert "`skerry data pack clinc150 FOLDER`" in done.stderr
    assert list((tmp_path / "sets").iterdir()) == []


def put(root: Path, folder: str, *names: str) -> Path:
    place = root / folder
    place.mkdir(parents=True)
    for name in names:
        (place / name).write_bytes(b"")
    return place


@pytest.mark.parametrize("folder", ["fashion_mnist", "fashion-mnist"])
def test_a_set_is_found_under_its_name_and_as_debians_package_writes_it(folder: str, tmp_path: Path) -> None:
    place = put(tmp_path, folder, *DATASETS["fashion_mnist"].files)
    with set_variables({"SKERRY_DATA": str(tmp_path)}):
        assert find_dataset("fashion_mnist") == place


def test_a_folder_that_lacks_a_file_does_not_hide_a_whole_one(tmp_path: Path) -> None:
    first, *others = DATASETS["fashion_mnist"].files
    put(tmp_path, "fashion_mnist", *others)
    with set_variables({"SKERRY_DATA": str(tmp_path)}):
        with pytest.raises(MissingDataError, match=first):
            find_dataset("fashion_mnist")
        whole = put(tmp_path, "fashion-mnist", first, *others)
        assert find_dataset("fashion_mnist") == whole


def test_what_was_fetched_without_a_variable_is_found_without_one(tmp_path: Path) -> None:
    with set_variables({"SKERRY_DATA": None, "XDG_CACHE_HOME": None, "HOME": str(tmp_path)}):
        assert locate_dataset("clinc150") is None
        place = put(tmp_path / ".cache" / "skerry" / "data", "clinc150", *DATASETS["clinc150"].files)
        assert find_dataset("clinc150") == place
        listed = skerry("data", "list")
    assert next(line for line in listed.stdout.splitlines() if str(place) in line).startswith("clinc150 ")


def test_a_set_that_nobody_knows_names_those_there_are() -> None:
    for command in ("fetch", "pack"):
        done = skerry("data", command, "mnist", *(["."] if command == "pack" else []))
        assert done.returncode == ExitCode.NOT_FOUND
        assert done.stderr == f"skerry: mnist: no such data set; there are {', '.join(DATASETS)}\n"

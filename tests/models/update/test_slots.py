"""Tests of the bundle store: slots are whole or absent after a crash at any step, and archives hold nothing else."""

import io
import json
import shutil
import subprocess
import sys
import tarfile
from hashlib import sha256

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.bundle.bundle import open_bundle
from models.bundle.manifest import HUB_FILE, BundleError
from models.update.partial_download import PartialDownload
from models.update.slots import Slot, Store, StoredDocument, StoreStep, pack_bundle, unpack_bundle
from tests import ROOT
from tests.models.bundles import write_bundle
from tests.models.conftest import contents, echo_graph, make
from tests.models.doubles.crashes import NEW, OLD, install
from wire.process.exit_codes import ExitCode, ExitError


@pytest.fixture
def old(tmp_path):
    return pack_bundle(make(tmp_path / "old", version=1))


@pytest.fixture
def new(tmp_path):
    return pack_bundle(make(tmp_path / "new", echo_graph(2.0), version=2))


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "store") as store:
        yield store


def unpacked(data, folder):
    folder.mkdir()
    return unpack_bundle(io.BytesIO(data), folder)


def tar(*members, kind=tarfile.REGTYPE, form=tarfile.USTAR_FORMAT, **changes):
    """A tar of (name, data), each with these changes to its header."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=form) as file:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size, info.mode, info.type = len(data), 0o644, kind
            for key, value in changes.items():
                setattr(info, key, value)
            file.addfile(info, io.BytesIO(data))
        size = file.offset
    return stream.getvalue()[:size] + bytes(1024)  # as we end it; tarfile would fill up a record of 10 KB


def test_packing_is_the_same_bytes_each_time_and_a_tar_anyone_can_read(tmp_path, made, old):
    again = make(tmp_path / "again", version=1)
    (again.path / "forge.json").write_text('{"forge_s": 1}')
    assert pack_bundle(open_bundle(again.path)) == pack_bundle(open_bundle(made.path)) == old
    with tarfile.open(fileobj=io.BytesIO(old)) as file:
        assert file.getnames() == ["edge.onnx", "golden.npz", "hub.json", "hub.safetensors", "manifest.json"]
        assert {member.mtime + member.uid + member.gid for member in file} == {0}


def test_unpacking_gives_the_same_bundle_and_the_digest_of_what_was_read(tmp_path, made, old):
    assert unpacked(old, tmp_path / "there") == sha256(old).hexdigest()
    assert open_bundle(tmp_path / "there").digest == made.digest


def test_a_manifest_written_by_hand_is_not_packed(made):
    (made.path / "manifest.json").write_bytes((made.path / "manifest.json").read_bytes() + b"\n")
    with pytest.raises(BundleError, match="by hand"):
        pack_bundle(open_bundle(made.path))


ESCAPES = {
    "parent": tar(("../x", b"1")),
    "absolute": tar(("/etc/x", b"1")),
    "in a folder": tar(("a/b", b"1")),
    "hidden": tar((".x", b"1")),
    "symlink": tar(("a", b""), kind=tarfile.SYMTYPE, linkname="/etc/passwd"),
    "hardlink": tar(("a", b""), kind=tarfile.LNKTYPE, linkname="/etc/passwd"),
    "device": tar(("a", b""), kind=tarfile.CHRTYPE),
    "pipe": tar(("a", b""), kind=tarfile.FIFOTYPE),
    "folder": tar(("a", b""), kind=tarfile.DIRTYPE),
    "old type": tar(("a", b"1"), kind=tarfile.AREGTYPE),
    "long name": tar(("a" * 200, b"1"), form=tarfile.GNU_FORMAT),
    "pax": tar(("a", b"1"), form=tarfile.PAX_FORMAT, pax_headers={"path": "../x"}),
    "runnable": tar(("a", b"1"), mode=0o755),
    "setuid": tar(("a", b"1"), mode=0o4644),
    "owned": tar(("a", b"1"), uid=1000, uname="root"),
    "dated": tar(("a", b"1"), mtime=1),
    "twice": tar(("a", b"1"), ("a", b"2")),
    "unordered": tar(("b", b"1"), ("a", b"2")),
    "record padding": tar(("a", b"1")) + bytes(512),
    "no end": tar(("a", b"1"))[:-512],
    "full padding": tar(("a", b"1"))[:513] + b"x" * 511 + bytes(1024),
}


@pytest.mark.parametrize("name", ESCAPES)
def test_a_packed_bundle_that_is_not_of_our_form_is_refused(tmp_path, name):
    with pytest.raises(BundleError, match="packed bundle"):
        unpacked(ESCAPES[name], tmp_path / "there")
    assert {path.name for path in tmp_path.iterdir()} == {"there"}
    assert not any(path.is_symlink() for path in (tmp_path / "there").iterdir())


def test_a_packed_bundle_of_too_many_or_too_big_files_is_refused(tmp_path):
    many = tar(*((f"f{number:03}", b"") for number in range(100)))
    with pytest.raises(BundleError, match="more than 64"):
        unpacked(many, tmp_path / "many")
    header = tarfile.TarInfo("a")
    header.size, header.mode = (1 << 30) + 1, 0o644
    with pytest.raises(BundleError, match="plain file"):
        unpacked(header.tobuf(tarfile.USTAR_FORMAT), tmp_path / "big")


@given(data=st.data())
def test_a_packed_bundle_with_any_byte_changed_or_cut_is_refused_or_has_another_digest(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("fuzz")
    packed = tar(("a", b"1" * 600), ("b", b""))
    whole = unpacked(packed, folder / "whole")
    at = data.draw(st.integers(0, len(packed) - 1))
    cut = data.draw(st.booleans())
    other = packed[:at] if cut else packed[:at] + bytes([packed[at] ^ (1 << (at % 8))]) + packed[at + 1 :]
    try:
        digest = unpacked(other, folder / "other")
    except BundleError:
        return
    assert digest != whole


def test_an_installed_bundle_serves_and_the_one_before_is_kept(store, old, new):
    first, second = install(store, old, OLD), install(store, new, NEW)
    assert (store.current, store.previous) == (second, first)
    assert store.open_slot(second).manifest.version == 2
    assert list((store.folder / "parts").iterdir()) == []


def test_a_restart_finds_what_was_activated(tmp_path, old):
    with Store(tmp_path / "store") as store:
        slot = install(store, old, OLD)
    with Store(tmp_path / "store") as store:
        assert store.current == slot
        assert store.open_slot(slot).manifest.version == 1


def test_the_third_bundle_pushes_the_first_out(store, old, new, tmp_path):
    third = pack_bundle(make(tmp_path / "third", version=3))
    first = install(store, old, OLD)
    install(store, new, NEW)
    install(store, third, "models/echo/echo-3.skb")
    assert not store.slot_folder(first).exists()
    assert len(list((store.folder / "slots").iterdir())) == 2


def test_rolling_back_serves_the_previous_and_forgets_what_failed(store, old, new):
    first, second = install(store, old, OLD), install(store, new, NEW)
    assert store.roll_back() == first == store.current
    assert store.previous is None
    assert not store.slot_folder(second).exists()
    assert store.roll_back() is None
    assert store.current == first


def test_bytes_that_are_not_the_promised_ones_are_not_staged(store, old, new):
    install(store, old, OLD)
    slot = Slot(NEW, 2, sha256(old).hexdigest())
    with store.reserve_part(slot.digest, len(new)) as part:
        part.append(new)
        with pytest.raises(BundleError, match="not those that were promised"):
            store.stage_bundle(part, slot)
    assert [path.name for path in (store.folder / "slots").iterdir()] == [store.slot_folder(store.current).name]


@pytest.mark.parametrize("path", ["models/echo/echo-3.skb", "models/other/other-2.skb"])
def test_a_bundle_under_another_name_or_version_is_not_staged(store, new, path):
    with pytest.raises(BundleError, match="it holds echo@2"):
        install(store, new, path)


def test_a_slot_changed_on_disk_does_not_open(store, old, new):
    slot = install(store, old, OLD)
    (store.slot_folder(slot) / "edge.onnx").write_bytes(b"swapped")
    with pytest.raises(BundleError):
        store.open_slot(slot)
    store.slot_folder(slot).rename(store.folder / "aside")
    unpacked(new, store.slot_folder(slot))
    with pytest.raises(BundleError, match="not the bundle that was installed"):
        store.open_slot(slot)


def test_staging_again_what_was_staged_and_left_is_no_obstacle(store, old, new):
    install(store, old, OLD)
    for _ in range(2):
        staged = stage(store, new, NEW, 2)
    store.activate(staged)
    assert store.current == staged


def stage(store, packed, path, version):
    slot = Slot(path, version, sha256(packed).hexdigest())
    with store.reserve_part(slot.digest, len(packed)) as part:
        part.append(packed)
        return store.stage_bundle(part, slot)


def test_a_staged_bundle_waits_while_documents_change_and_goes_when_it_is_dropped(store, old, new):
    first = install(store, old, OLD)
    staged = stage(store, new, NEW, 2)
    store.keep_document(StoredDocument("policy/demo.toml", 1, sha256(b"one").hexdigest()), b"one")
    assert store.open_slot(staged).manifest.version == 2
    store.drop_staged()
    assert not store.slot_folder(staged).exists()
    assert store.current == first


def test_documents_are_replaced_whole_and_found_again(tmp_path):
    with Store(tmp_path / "store") as store:
        assert store.read_document("policy/demo.toml") is None
        for version, data in enumerate((b"one", b"two"), 1):
            store.keep_document(StoredDocument("policy/demo.toml", version, sha256(data).hexdigest()), data)
    with Store(tmp_path / "store") as store:
        found = store.read_document("policy/demo.toml")
        assert found
        document, data = found
        assert (document.version, data) == (2, b"two")
        assert len(list((store.folder / "documents").iterdir())) == 1
        (store.folder / "documents" / document.digest).write_bytes(b"torn")
        assert store.read_document("policy/demo.toml") is None


def test_an_unreadable_index_is_said_and_nothing_is_swept_away(tmp_path, old):
    with Store(tmp_path / "store") as store:
        slot = install(store, old, OLD)
    (tmp_path / "store" / "index.json").write_bytes(b"\0" * 100)
    with Store(tmp_path / "store") as store:
        assert store.damaged
        assert store.current is None
        assert store.slot_folder(slot).exists()


def test_no_room_is_said_before_the_download(store):
    with pytest.raises(OSError, match="no room"):
        store.reserve_part("d" * 64, 1 << 60)


def test_room_is_made_by_other_downloads_that_were_left(store):
    with store.reserve_part("a" * 64, 10) as part:
        part.append(b"left")
    store.reserve_part("b" * 64, 10)
    assert list((store.folder / "parts").iterdir()) == []


def test_a_second_agent_on_the_same_folder_does_not_start(store):
    with pytest.raises(ExitError) as caught, Store(store.folder):
        pass
    assert caught.value.code is ExitCode.LOCKED


def test_a_part_is_not_written_through_a_link(tmp_path):
    (tmp_path / "x.part").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="symbolic links"), PartialDownload(tmp_path / "x.part"):
        pass


def outcomes(tmp_path, old, new, mode):
    files = []
    for name, data in (("old.skb", old), ("new.skb", new)):
        (tmp_path / name).write_bytes(data)
        files.append(str(tmp_path / name))
    command = [sys.executable, "-m", "tests.models.doubles.crashes", str(tmp_path / "crash"), *files, mode]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


ACTIVE_FROM = {StoreStep.SYNC_FOLDER, StoreStep.SWEEP}  # the index was renamed: the new one is current


def test_killed_at_each_named_point_it_is_the_old_model_or_the_new_one_and_nothing_else(tmp_path, old, new):
    results = outcomes(tmp_path, old, new, "kill")
    assert len(results) == 12
    for point, result in results.items():
        expected = 2 if StoreStep(point) in ACTIVE_FROM else 1
        assert result["said"] == "killed", point
        assert (result.get("serves"), result.get("litter"), result.get("scratch")) == (expected, 0, []), (point, result)
        assert result["then"] == 2


def test_a_disk_full_at_each_named_point_leaves_the_old_model_serving_and_gives_the_space_back(tmp_path, old, new):
    results = outcomes(tmp_path, old, new, "full")
    assert len(results) == 12
    for point, result in results.items():
        assert result["said"].startswith("ENOSPC serving"), (point, result)
        assert result["serves"] == int(result["said"][-1]) == (2 if StoreStep(point) in ACTIVE_FROM else 1), (
            point,
            result,
        )
        assert (result["litter"], result["scratch"], result["then"]) == (0, [], 2), (point, result)
        assert result["used"] < 2.2 * len(old), (point, result)


def test_a_write_the_kernel_refuses_in_the_middle_of_a_file_leaves_the_old_model_serving(tmp_path, old, made):
    manifest = msgspec.structs.replace(made.manifest, version=2)
    big = pack_bundle(write_bundle(tmp_path / "big", manifest, contents() | {HUB_FILE: bytes(50_000)}))
    results = outcomes(tmp_path, old, big, "limit")
    assert results["unpack"]["said"] == "EFBIG serving 1"
    assert results["unpack"]["used"] < 2.2 * len(old)
    assert (results["unpack"]["serves"], results["unpack"]["then"]) == (1, 2)


def test_a_previous_slot_that_is_not_there_is_no_way_back(tmp_path, old, new):
    with Store(tmp_path / "store") as store:
        first = install(store, old, OLD)
        install(store, new, NEW)
        shutil.rmtree(store.slot_folder(first))
    with Store(tmp_path / "store") as store:
        assert store.previous is None
        assert store.current
        assert store.open_slot(store.current).manifest.version == 2

"""Backup and restore of a folder: consistent beside a writer, whole or not at all, and nothing else is done."""

import io
import os
import resource
import sqlite3
import tarfile
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from wire.backup import sealing
from wire.backup.archive import MAX_DEPTH, BackupKind, BackupManifest, BackupPlan, write_backup
from wire.backup.restoring import RestoreRequest, read_configuration, restore_state
from wire.backup.sealing import Seal, Secrets, choose_seal, choose_secrets, make_passphrase_seal
from wire.process.daemon import RESTORING_MARK, FolderLock
from wire.process.exit_codes import ExitCode, ExitError

PASSPHRASE = "correct horse"
NOW_MS = 1_760_000_000_000


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state folder: a database in WAL mode, a key, nested files, a link, and what a process makes anew."""
    folder = tmp_path / "state"
    (folder / "deep" / "down").mkdir(parents=True)
    with closing(sqlite3.connect(folder / "agent.db", isolation_level=None)) as db:
        db.execute("pragma journal_mode=wal")
        db.execute("create table pairs(a integer, b integer)")
        db.execute("insert into pairs values(0, 0)")
    (folder / "signing.key").write_bytes(b"k" * 32)
    (folder / "signing.key").chmod(0o600)
    (folder / "deep" / "down" / "file").write_bytes(os.urandom(70_000))
    (folder / "deep" / "now").symlink_to("down")
    for name in ("lock", "api.json", "agent.mark", ".half-written.1234", "agent.db.damaged-1"):
        (folder / name).write_bytes(b"of the process")
    (folder / "broker").mkdir()
    (folder / "broker" / "queue").write_bytes(b"made anew")
    return folder


def plan(folder: Path, kind: BackupKind = BackupKind.AGENT, config: Path | None = None) -> BackupPlan:
    return BackupPlan(kind, "demo--cam-7", "1", folder, config=config, left_out=("agent.mark", "broker"))


def take(_staged: Path, _manifest: BackupManifest) -> None:
    """A preparation that takes everything."""


def restored(source: Path, folder: Path, opening: Secrets = Secrets(), *, force: bool = False) -> Path | None:  # noqa: B008
    return restore_state(RestoreRequest(source, BackupKind.AGENT, opening, force), folder, take).aside


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_what_is_backed_up_comes_back_and_what_a_process_makes_anew_does_not(tmp_path: Path, state: Path) -> None:
    config = tmp_path / "agent.toml"
    config.write_text('state = "state"\n')
    target = tmp_path / "one.backup"
    write_backup(target, plan(state, config=config), None, NOW_MS)
    assert target.stat().st_mode & 0o777 == 0o600
    assert restored(target, tmp_path / "again") is None
    back = contents(tmp_path / "again")
    assert set(back) == {"agent.db", "signing.key", "deep/down/file", "lock"}
    assert back["deep/down/file"] == contents(state)["deep/down/file"]
    assert (tmp_path / "again" / "deep" / "now").readlink() == Path("down")
    assert (tmp_path / "again" / "signing.key").stat().st_mode & 0o777 == 0o600
    assert read_configuration(RestoreRequest(target, BackupKind.AGENT)) == config.read_bytes()
    with tarfile.open(target) as tar:  # not sealed: any tar reads it
        assert tar.getnames()[-1] == "manifest.json"


def test_a_copy_beside_a_writer_is_of_one_moment(tmp_path: Path, state: Path) -> None:
    begun, done = threading.Event(), threading.Event()

    def write() -> None:
        with closing(sqlite3.connect(state / "agent.db", isolation_level=None, timeout=30)) as db:
            for number in range(1, 100_000):
                db.execute("begin immediate")
                db.execute("insert into pairs values(?, ?)", (number, number))
                db.execute("update pairs set a=?, b=? where rowid=1", (number, number))
                db.execute("commit")
                begun.set()
                if done.is_set():
                    return

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert begun.wait(30)
        write_backup(tmp_path / "one.backup", plan(state), None, NOW_MS)
    finally:
        done.set()
        writer.join()
    restored(tmp_path / "one.backup", tmp_path / "again")
    with closing(sqlite3.connect(tmp_path / "again" / "agent.db")) as db:
        first = db.execute("select a, b from pairs where rowid=1").fetchone()
        rows = db.execute("select count(*) from pairs").fetchone()[0]
    assert first == (rows - 1, rows - 1)
    assert rows > 1


@contextmanager
def at_most(size: int) -> Iterator[None]:
    """No file grows beyond `size`, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("size", [4096, 40_000])
def test_a_full_disk_leaves_nothing_of_a_backup(tmp_path: Path, state: Path, size: int) -> None:
    before = contents(tmp_path)
    with at_most(size), pytest.raises(ExitError) as stopped:
        write_backup(tmp_path / "one.backup", plan(state), None, NOW_MS)
    assert stopped.value.code is ExitCode.DISK
    assert "nothing was written" in str(stopped.value)
    assert contents(tmp_path) == before


def test_a_full_disk_leaves_the_state_that_was_there(tmp_path: Path, state: Path) -> None:
    write_backup(tmp_path / "one.backup", plan(state), None, NOW_MS)
    before = contents(state)
    with at_most(40_000), pytest.raises(ExitError) as stopped:
        restored(tmp_path / "one.backup", state, force=True)
    assert stopped.value.code is ExitCode.DISK
    assert {name: data for name, data in contents(state).items() if name != "lock"} == {
        name: data for name, data in before.items() if name != "lock"
    }


def test_a_restore_into_a_folder_in_use_is_refused(tmp_path: Path, state: Path) -> None:
    write_backup(tmp_path / "one.backup", plan(state), None, NOW_MS)
    with FolderLock(state), pytest.raises(ExitError) as stopped:
        restored(tmp_path / "one.backup", state, force=True)
    assert stopped.value.code is ExitCode.LOCKED


def test_a_folder_that_is_not_empty_is_put_aside_by_force_alone(tmp_path: Path, state: Path) -> None:
    write_backup(tmp_path / "one.backup", plan(state), None, NOW_MS)
    (state / "signing.key").write_bytes(b"newer")
    with pytest.raises(ExitError, match="--force") as stopped:
        restored(tmp_path / "one.backup", state)
    assert stopped.value.code is ExitCode.USAGE
    assert (state / "signing.key").read_bytes() == b"newer"
    aside = restored(tmp_path / "one.backup", state, force=True)
    assert aside is not None
    assert (aside / "signing.key").read_bytes() == b"newer"
    assert (state / "signing.key").read_bytes() == b"k" * 32
    write_backup(tmp_path / "two.backup", plan(state), None, NOW_MS)  # and what was put aside is in no backup
    assert (tmp_path / "two.backup").stat().st_size == (tmp_path / "one.backup").stat().st_size


def test_no_process_starts_on_a_state_that_is_half_in_its_place(tmp_path: Path, state: Path) -> None:
    write_backup(tmp_path / "one.backup", plan(state), None, NOW_MS)
    (state / RESTORING_MARK).write_bytes(b"")  # the power went between two renames
    with pytest.raises(ExitError, match="cut off half way"), FolderLock(state):
        pass
    restored(tmp_path / "one.backup", state, force=True)
    with FolderLock(state):
        pass


def test_a_backup_is_never_written_over_a_file(tmp_path: Path, state: Path) -> None:
    (tmp_path / "one.backup").write_text("of somebody")
    with pytest.raises(ExitError) as stopped:
        write_backup(tmp_path / "one.backup", plan(state), None, NOW_MS)
    assert stopped.value.code is ExitCode.USAGE


def test_a_damaged_database_is_no_backup(tmp_path: Path, state: Path) -> None:
    data = bytearray((state / "agent.db").read_bytes())
    data[4096 + 3 : 4096 + 40] = b"\xff" * 37
    (state / "agent.db").write_bytes(data)
    with pytest.raises(ExitError) as stopped:
        write_backup(tmp_path / "one.backup", plan(state), None, NOW_MS)
    assert stopped.value.code is ExitCode.DATABASE
    assert not (tmp_path / "one.backup").exists()


def test_a_backup_of_something_else_is_refused(tmp_path: Path, state: Path) -> None:
    write_backup(tmp_path / "hub.backup", plan(state, BackupKind.HUB), None, NOW_MS)
    with pytest.raises(ExitError, match="of a hub, not of an agent") as stopped:
        restored(tmp_path / "hub.backup", tmp_path / "again")
    assert stopped.value.code is ExitCode.DATABASE
    assert set(contents(tmp_path / "again")) == {"lock"}


SEALS: dict[str, Seal | None] = {"clear": None, "sealed": Seal(sealing.MAGIC + b'{"seal": "passphrase"}\n', b"k" * 32)}


@pytest.fixture(scope="module", params=SEALS)
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("whole")
    (folder / "state").mkdir()
    for number in range(3):
        (folder / "state" / f"file-{number}").write_bytes(bytes([number]) * 3000)
    write_backup(folder / "one.backup", plan(folder / "state"), SEALS[request.param], NOW_MS)
    return (folder / "one.backup").read_bytes()


@given(st.data())
def test_a_changed_or_cut_archive_is_refused_or_gives_the_same_files(
    whole: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(whole) - 1))
    cut = data.draw(st.booleans())
    bad = whole[:at] if cut else whole[:at] + bytes([whole[at] ^ data.draw(st.integers(1, 255))]) + whole[at + 1 :]
    folder = tmp_path_factory.mktemp("cut")
    (folder / "bad").write_bytes(bad)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sealing, "_find_key", lambda *_: b"k" * 32)  # scrypt would take a second each time
        code = ExitCode.OK
        try:
            restored(folder / "bad", folder / "again")
        except ExitError as stopped:
            code = stopped.code
    assert code in {ExitCode.OK, ExitCode.DATABASE, ExitCode.CREDENTIALS}
    found = {name: body for name, body in contents(folder / "again").items() if name != "lock"}
    same = {f"file-{number}": bytes([number]) * 3000 for number in range(3)}
    assert found == (same if code is ExitCode.OK else {})


@pytest.mark.parametrize("name", ["../out", "/tmp/out", "state/../../out", "other/x", "state/deep"])
def test_no_archive_writes_outside_of_its_folder(tmp_path: Path, name: str) -> None:
    with tarfile.open(tmp_path / "evil", "w") as tar:
        entry = tarfile.TarInfo(name)
        if name == "state/deep":  # a link that leads out
            entry.type, entry.linkname = tarfile.SYMTYPE, "../../out"
            tar.addfile(entry)
            entry = tarfile.TarInfo("state/deep/x")
        entry.size = 1
        tar.addfile(entry, io.BytesIO(b"x"))
    with pytest.raises(ExitError, match="what no backup does") as stopped:
        restored(tmp_path / "evil", tmp_path / "again")
    assert stopped.value.code is ExitCode.DATABASE
    assert set(contents(tmp_path)) == {"evil", "again/lock"}


def pack(*entries: tuple[str, dict[str, str], bytes]) -> bytearray:
    """A tar of files: a name, fields of its extended header, content."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, fields, content in entries:
            entry = tarfile.TarInfo(name)
            entry.size, entry.pax_headers = len(content), fields
            tar.addfile(entry, io.BytesIO(content))
    return bytearray(file.getvalue())


def rewrite(archive: bytearray, at: int, field: bytes) -> bytearray:
    """Put a field into the first header, and its checksum right."""
    archive[at : at + len(field)] = field
    archive[148:156] = b" " * 8
    archive[148:156] = b"%06o\0 " % sum(archive[:512])
    return archive


def sparse_of_old_tar(hole: int) -> bytearray:
    header = pack(("state/x", {}, bytes(512)))
    header[386:495] = b"%011o\0%011o\0" % (0, 512) + bytes(73) + b"%011o\0" % hole
    return rewrite(header, 156, b"S")


HOLE = 1 << 30
SPARSE = {"GNU.sparse.size": str(HOLE), "GNU.sparse.map": "0,512"}
HOSTILE = {
    "a file of holes": sparse_of_old_tar(HOLE),
    "a file of holes, in an extended header": pack(("state/x", SPARSE, bytes(512))),
    "folders too deep to be deleted": pack(("state/" + "a/" * 1500 + "x", {}, b"x")),
    "a name with a zero byte": pack(("state/x", {"path": "state/a\0b"}, b"x")),
    "a file that is a folder too": pack(("state/a", {}, b"x"), ("state/a/b", {}, b"x")),
    "a folder that is a file too": pack(("state/a/b", {}, b"x"), ("state/a", {}, b"x")),
    "one file under two names": pack(("state/a", {}, b"x"), ("state//a", {}, b"x")),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_an_entry_that_no_backup_has_is_refused_and_leaves_nothing(tmp_path: Path, name: str) -> None:
    (tmp_path / "evil").write_bytes(HOSTILE[name])
    with at_most(1 << 20), pytest.raises(ExitError, match="what no backup does") as stopped:
        restored(tmp_path / "evil", tmp_path / "again")
    assert stopped.value.code is ExitCode.DATABASE
    assert set(contents(tmp_path)) == {"evil", "again/lock"}


@pytest.mark.timeout(20)
def test_a_file_that_claims_more_bytes_than_there_are_does_not_keep_a_restore_busy(tmp_path: Path) -> None:
    archive = rewrite(pack(("state/x", {}, b"x")), 124, b"\x80" + (1 << 80).to_bytes(11, "big"))
    (tmp_path / "evil").write_bytes(archive)
    with pytest.raises(ExitError, match="is damaged") as stopped:
        read_configuration(RestoreRequest(tmp_path / "evil", BackupKind.AGENT))
    assert stopped.value.code is ExitCode.DATABASE


def test_numbers_in_a_header_that_are_none_are_refused_in_one_line(tmp_path: Path) -> None:
    fields = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}
    (tmp_path / "evil").write_bytes(pack(("state/x", fields, b"many\n" * 200)))
    with pytest.raises(ExitError, match="is no backup, or is damaged") as stopped:
        restored(tmp_path / "evil", tmp_path / "again")
    assert stopped.value.code is ExitCode.DATABASE


def test_folders_too_deep_to_be_restored_are_not_backed_up(tmp_path: Path, state: Path) -> None:
    deep = state.joinpath(*["a"] * MAX_DEPTH)
    deep.mkdir(parents=True)
    (deep / "x").write_bytes(b"x")
    with pytest.raises(ExitError, match="folders deep") as stopped:
        write_backup(tmp_path / "one.backup", plan(state), None, NOW_MS)
    assert stopped.value.code is ExitCode.USAGE
    assert not (tmp_path / "one.backup").exists()
    (deep / "x").rename(deep.parent.parent / "x")
    write_backup(tmp_path / "one.backup", plan(state), None, NOW_MS)
    restored(tmp_path / "one.backup", tmp_path / "again")


def test_a_file_that_is_no_archive_is_refused_in_one_line(tmp_path: Path) -> None:
    for data in (b"", b"hello", os.urandom(5000), sealing.MAGIC + b"{}\n", sealing.MAGIC + b"[" * 5000):
        (tmp_path / "none").write_bytes(data)
        with pytest.raises(ExitError) as stopped:
            restored(tmp_path / "none", tmp_path / "again")
        assert stopped.value.code is ExitCode.DATABASE
        assert "\n" not in str(stopped.value)


def test_a_passphrase_opens_what_it_sealed_and_no_other_does(tmp_path: Path, state: Path) -> None:
    (tmp_path / "right").write_text(f"{PASSPHRASE}\n")
    (tmp_path / "wrong").write_text("battery staple\n")
    write_backup(tmp_path / "one.backup", plan(state), choose_seal(tmp_path / "right", None), NOW_MS)
    assert b"k" * 32 not in (tmp_path / "one.backup").read_bytes()
    for opening in (Secrets(), choose_secrets(tmp_path / "wrong", None)):
        with pytest.raises(ExitError) as stopped:
            restored(tmp_path / "one.backup", tmp_path / "again", opening)
        assert stopped.value.code is ExitCode.CREDENTIALS
    restored(tmp_path / "one.backup", tmp_path / "again", choose_secrets(tmp_path / "right", None))
    assert (tmp_path / "again" / "signing.key").read_bytes() == b"k" * 32
    with pytest.raises(ExitError, match="at least 8"):
        make_passphrase_seal(b"short")


def test_a_recipient_opens_what_was_sealed_to_its_public_key(tmp_path: Path, state: Path) -> None:
    for name in ("mine", "other"):
        key = X25519PrivateKey.generate()
        pem, clear = serialization.Encoding.PEM, serialization.NoEncryption()
        (tmp_path / f"{name}.key").write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, clear))
        (tmp_path / f"{name}.key").chmod(0o600)
        public = key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
        (tmp_path / f"{name}.pub").write_bytes(public)
    write_backup(tmp_path / "one.backup", plan(state), choose_seal(None, tmp_path / "mine.pub"), NOW_MS)
    for opening in (Secrets(), choose_secrets(None, tmp_path / "other.key")):
        with pytest.raises(ExitError) as stopped:
            restored(tmp_path / "one.backup", tmp_path / "again", opening)
        assert stopped.value.code is ExitCode.CREDENTIALS
    (tmp_path / "mine.pub").chmod(0o600)
    with pytest.raises(ExitError, match="no X25519 private key"):
        choose_secrets(None, tmp_path / "mine.pub")
    restored(tmp_path / "one.backup", tmp_path / "again", choose_secrets(None, tmp_path / "mine.key"))
    assert (tmp_path / "again" / "signing.key").read_bytes() == b"k" * 32

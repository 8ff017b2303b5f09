"""Frozen backups: a state that was saved by an earlier release comes back, sealed or not."""

import io
import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from tests.second_implementation import artefacts, vectors
from wire.backup.archive import BackupKind, BackupManifest, FileFacts
from wire.backup.restoring import RestoreRequest, read_configuration, restore_state
from wire.backup.sealing import CHUNK_BYTES, SealingWriter, Secrets, choose_secrets, make_recipient_seal, open_source

FOLDER = vectors.FOLDER / "backups"
PASSPHRASE, RECIPIENT = b"correct horse", vectors.fixed_bytes("backup recipient")
PLAIN = (FOLDER / "plain.backup").read_bytes()


@pytest.fixture
def opening(tmp_path: Path) -> Secrets:
    word, key = tmp_path / "passphrase", tmp_path / "recipient.key"
    word.write_bytes(PASSPHRASE)
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    key.write_bytes(X25519PrivateKey.from_private_bytes(RECIPIENT).private_bytes(serialization.Encoding.PEM, *form))
    for path in (word, key):
        path.chmod(0o600)
    return choose_secrets(word, key)


def take(_staged: Path, _manifest: BackupManifest) -> None:
    """A preparation that takes everything."""


@pytest.mark.parametrize("name", ["plain", "passphrase", "recipient"])
def test_a_frozen_backup_comes_back_whole(name: str, opening: Secrets, tmp_path: Path) -> None:
    request = RestoreRequest(FOLDER / f"{name}.backup", BackupKind.AGENT, opening)
    state = tmp_path / "state"
    manifest = restore_state(request, state, take).manifest
    assert (manifest.name, manifest.created_ms, manifest.notes) == (
        vectors.DEVICE, vectors.NOW_MS, {"why": "frozen"}
    )  # fmt: skip
    with closing(sqlite3.connect(state / "agent.db")) as db:
        assert db.execute("select * from pairs").fetchall() == [(1, "one")]
    assert (state / "signing.key").read_bytes() == vectors.DEVICE_SIGNING
    assert (state / "signing.key").stat().st_mode & 0o777 == 0o600
    assert (state / "now" / "file").read_text() == "deep\n"
    assert read_configuration(request) == b'state = "state"\n'


def test_the_second_implementation_opens_what_is_sealed() -> None:
    assert artefacts.open_backup((FOLDER / "passphrase.backup").read_bytes(), passphrase=PASSPHRASE) == PLAIN
    assert artefacts.open_backup((FOLDER / "recipient.backup").read_bytes(), identity=RECIPIENT) == PLAIN


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES, CHUNK_BYTES + 1, 2 * CHUNK_BYTES])
def test_each_opens_the_chunks_that_the_other_sealed(size: int, opening: Secrets) -> None:
    archive = (vectors.fixed_bytes("archive") * (size // 32 + 1))[:size]
    theirs = artefacts.seal_backup(archive, PASSPHRASE, bytes(16), 2)
    assert open_source(io.BytesIO(theirs), "x", opening).read(size + 1) == archive
    file = io.BytesIO()
    writer = SealingWriter(file, make_recipient_seal(X25519PrivateKey.from_private_bytes(RECIPIENT).public_key()))
    writer.write(archive)
    writer.close()
    assert artefacts.open_backup(file.getvalue(), identity=RECIPIENT) == archive


def test_a_new_key_of_the_manifest_has_a_default_so_that_frozen_ones_are_read() -> None:
    known = {"kind", "name", "release", "created_ms", "files", "notes", "format"}
    assert {field.name for field in msgspec.structs.fields(BackupManifest) if field.required} <= known
    assert {field.name for field in msgspec.structs.fields(FileFacts) if field.required} == {"size", "sha256", "mode"}

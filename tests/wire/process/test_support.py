"""The archive for whoever helps: no secret is in it, what is in it is listed first, nothing is written unasked."""

import json
import sqlite3
import tarfile
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire.process.exit_codes import ExitCode, ExitError
from wire.process.findings import Finding, Severity
from wire.process.support import REDACTED, collect_files, offer_archive, redact

NOW = datetime(2026, 11, 25, tzinfo=UTC)
WORD = st.text("abcdefghijklmnopqrstuvwxyz0123456789", min_size=12, max_size=40)


@given(WORD, st.sampled_from(["token = '{}'", 'admin_password = "{}"', '"secret": "{}",', "api_key: {}", "Bearer {}"]))
def test_whatever_is_called_a_secret_is_taken_out(word: str, form: str) -> None:
    text = f"[api]\nport = 1\n{form.format(word)}\nname = 'cam-7'\n"
    told = redact(text)
    assert word not in told
    assert REDACTED in told
    assert "port = 1" in told
    assert "cam-7" in told


@given(WORD, WORD)
def test_users_of_addresses_and_invites_are_taken_out(user: str, word: str) -> None:
    told = redact(f'url = "postgresql+psycopg://{user}:{word}@db.example/x"\nskerry1:{word}.{user}\n')
    assert word not in told
    assert "db.example/x" in told


def test_json_stays_json_and_files_of_secrets_are_named() -> None:
    told = json.loads(redact(json.dumps({"token": "x" * 20, "token_file": "/etc/skerry/t", "port": 1}, indent=2)))
    assert told == {"token": REDACTED, "token_file": "/etc/skerry/t", "port": 1}


def test_a_private_key_is_taken_out_as_a_whole() -> None:
    told = redact("a\n-----BEGIN PRIVATE KEY-----\nMIIEv\nabc\n-----END PRIVATE KEY-----\nb")
    assert told.split() == ["a", REDACTED, "b"]


def make_folder(folder: Path) -> Path:
    folder.mkdir()
    (folder / "signing.key").write_bytes(b"the very key")
    with closing(sqlite3.connect(folder / "agent.db")) as db, db:
        db.execute("create table answers (x)")
        db.executemany("insert into answers values (?)", [("a patient",), ("another patient",)])
    db.close()
    (folder / "broken.db").write_bytes(b"no database" * 99)
    (folder / "agent.toml").write_text('token = "of somebody"\nport = 1\n')
    return folder


def test_what_is_kept_is_counted_and_named_and_never_read(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "device")
    found = [Finding("disk", Severity.PROBLEM, "full", "make room")]
    files = {file.name: file.data.decode() for file in collect_files(found, folder / "agent.toml", folder, {"up": 1})}
    assert json.loads(files["rows.json"])["agent.db"] == {"answers": 2}
    assert "signing.key" in files["folder.txt"]
    assert json.loads(files["checkup.json"])[0]["advice"] == "make room"
    assert "skerry" in json.loads(files["versions.json"])
    everything = "".join(files.values())
    for secret in ("the very key", "patient", "somebody"):
        assert secret not in everything


def test_the_archive_is_listed_first_and_written_only_if_confirmed(tmp_path: Path) -> None:
    folder, target = make_folder(tmp_path / "device"), tmp_path / "out.tar.gz"
    files = collect_files([], None, folder, None)
    with pytest.raises(ExitError) as refused:
        list(offer_archive(files, target, lambda _: False, NOW))
    assert refused.value.code is ExitCode.USAGE
    assert not target.exists()
    lines = list(offer_archive(files, target, lambda _: True, NOW))
    assert lines[-1] == f"wrote {target}"
    assert target.stat().st_mode & 0o077 == 0
    with tarfile.open(target) as tar:
        assert [name.rpartition("/")[2] for name in tar.getnames()] == [file.name for file in files]
    assert all(any(file.name in line for line in lines) for file in files)
    with pytest.raises(ExitError, match="is there already"):
        list(offer_archive(files, target, lambda _: True, NOW))
    with pytest.raises(ExitError) as full:
        list(offer_archive(files, tmp_path / "none" / "x", lambda _: True, NOW))
    assert full.value.code is ExitCode.DISK


def test_the_path_of_a_webhook_is_left_out_and_its_host_stays():
    told = redact('[[output]]\nurl = "https://hooks.example/services/T0/B1/s3cr3tword"\nname = "a"\n')
    assert "s3cr3tword" not in told
    assert "https://hooks.example/[redacted]" in told

"""Tests of the key folder: sealed keys, their numbers, and the record of what they signed."""

import json
import stat

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from models.signing.keyring import Keyring, ScryptCost, SealedKey, build_signer, seal_key, unseal_key
from tests.examples import count_examples
from wire.process.exit_codes import ExitCode, ExitError

PASSPHRASE = b"a long enough passphrase"
CHEAP = ScryptCost(n=16)


def ring_with(folder, *roles, passphrase=PASSPHRASE):
    ring = Keyring.create(folder, CHEAP)
    for role in roles:
        ring.draw_key(role)
    ring.save_keys(lambda: passphrase)
    return ring


def everything(ring):
    return frozenset(key.keyid for key in ring.key_files())


def test_a_key_is_on_disk_only_sealed(tmp_path):
    ring = Keyring.create(tmp_path / "ring", CHEAP)
    signer = ring.draw_key("root")
    assert list((tmp_path / "ring").iterdir()) == []
    ring.save_keys(lambda: PASSPHRASE)
    (path,) = (tmp_path / "ring").iterdir()
    assert path.name == "root-1.key"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert isinstance(signer._private_key, Ed25519PrivateKey)
    raw = signer._private_key.private_bytes_raw()
    assert raw not in path.read_bytes()
    assert raw.hex() not in path.read_text()
    (again,) = Keyring(tmp_path / "ring").unlock_keys(frozenset({signer.public_key.keyid}), lambda _: PASSPHRASE)
    assert again.sign(b"x").signature == signer.sign(b"x").signature


def test_keys_are_numbered_on_and_no_number_is_used_twice(tmp_path):
    ring = ring_with(tmp_path / "ring", "root", "root", "root", "models-digits")
    assert [key.name for key in ring.key_files()] == ["models-digits-1", "root-1", "root-2", "root-3"]
    (ring.folder / "root-3.key").unlink()
    ring.keep_root(b'{"x-skerry-name": "root-3"}')
    assert ring.draw_key("root").public_key.unrecognized_fields["x-skerry-name"] == "root-4"
    assert ring.draw_key("root").public_key.unrecognized_fields["x-skerry-name"] == "root-5"


def test_keys_are_never_written_over(tmp_path):
    ring_with(tmp_path / "ring", "root")
    with pytest.raises(ExitError) as stop:
        Keyring.create(tmp_path / "ring")
    assert stop.value.code is ExitCode.CREDENTIALS


def test_a_wrong_passphrase_opens_nothing(tmp_path):
    ring = ring_with(tmp_path / "ring", "root")
    with pytest.raises(ExitError, match="wrong passphrase") as stop:
        ring.unlock_keys(everything(ring), lambda _: b"another passphrase")
    assert stop.value.code is ExitCode.CREDENTIALS


def test_an_empty_passphrase_leaves_a_key_out(tmp_path):
    ring = ring_with(tmp_path / "ring", "root", "targets")
    answers = {"root-1": b"", "targets-1": PASSPHRASE}
    assert len(ring.unlock_keys(everything(ring), lambda name: answers[name])) == 1


def test_one_passphrase_for_all_is_asked_once(tmp_path):
    ring = ring_with(tmp_path / "ring", "root", "root", "targets")
    answers = iter([PASSPHRASE])
    assert len(ring.unlock_keys(everything(ring), lambda _: next(answers))) == 3


def test_a_passphrase_of_less_than_12_characters_is_refused_and_nothing_written(tmp_path):
    ring = Keyring.create(tmp_path / "ring", CHEAP)
    ring.draw_key("root")
    with pytest.raises(ExitError) as stop:
        ring.save_keys(lambda: b"short")
    assert stop.value.code is ExitCode.USAGE
    assert ring.key_files() == ()


def test_nobody_is_asked_for_a_passphrase_where_nothing_was_drawn(tmp_path):
    assert ring_with(tmp_path / "ring", "root").save_keys(lambda: pytest.fail("asked")) == []


SEALED = seal_key(Ed25519PrivateKey.generate(), "root-1", PASSPHRASE, CHEAP)


@given(st.integers(0, len(SEALED) - 1), st.integers(1, 255))
@settings(max_examples=count_examples(150), deadline=None)
def test_a_key_file_with_any_byte_changed_opens_nothing(place, change):
    """The public half and the cost are bound too: nobody can make it cheaper, or sign under another id."""
    data = bytearray(SEALED)
    data[place] ^= change
    changed = SealedKey("root-1", "root", b"", bytes(data))
    try:
        signer = unseal_key(changed, PASSPHRASE)
    except ExitError:
        return
    assert signer is None or json.loads(bytes(data)) == json.loads(SEALED)


@pytest.mark.parametrize("kdf", [{"n": 1 << 40}, {"n": 1 << 24}, {"r": 1 << 20}, {"p": 1 << 20}, {"n": 17}, {"n": 0}])
def test_a_hostile_key_file_takes_no_memory(kdf):
    values = json.loads(SEALED)
    values["kdf"] |= kdf
    with pytest.raises(ExitError, match="damaged"):
        unseal_key(SealedKey("root-1", "root", b"", json.dumps(values).encode()), PASSPHRASE)


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"null", b"\xff", b'{"format": "skerry-key/1", "name": "root-1"}'])
def test_what_is_no_key_file_is_said(tmp_path, data):
    ring = ring_with(tmp_path / "ring", "targets")
    (ring.folder / "root-1.key").write_bytes(data)
    with pytest.raises(ExitError, match="not a key of ours"):
        ring.key_files()


def test_a_key_file_under_another_name_is_refused(tmp_path):
    """Its name says what it counts for."""
    ring = ring_with(tmp_path / "ring", "root")
    (ring.folder / "root-1.key").rename(ring.folder / "targets-1.key")
    with pytest.raises(ExitError, match="not a key of ours"):
        ring.key_files()


def test_a_missing_folder_is_said(tmp_path):
    with pytest.raises(ExitError, match="no such folder"):
        Keyring(tmp_path / "nowhere").key_files()


def test_one_number_is_signed_with_one_content(tmp_path):
    ring = ring_with(tmp_path / "ring", "root")
    ring.claim_version("policy", 5, b"one")
    ring.claim_version("policy", 5, b"one")
    ring.claim_version("policy", 6, b"other")
    with pytest.raises(ExitError, match="policy 5 was signed here before") as stop:
        Keyring(ring.folder).claim_version("policy", 5, b"other")
    assert stop.value.code is ExitCode.CHECK_FAILED
    ring.claim_version("policy", 5, b"other", again=True)
    ring.claim_version("policy", 5, b"other")


def test_names_are_beside_the_key_not_part_of_its_id():
    private = Ed25519PrivateKey.generate()
    one, other = build_signer(private, "root-1").public_key, build_signer(private, "root-9").public_key
    assert one.keyid == other.keyid
    assert one.to_dict() != other.to_dict()

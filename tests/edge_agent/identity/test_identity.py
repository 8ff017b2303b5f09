"""The identity folder: two formats, one rename per change, nothing readable by others."""

import json
import ssl
import stat
from pathlib import Path

import pytest
from cryptography import x509

from cloud_hub.security.authority import Authority, utc_now
from edge_agent.identity.identity import FORMAT, Identity, load_identity
from tests.cloud_hub.doubles.joiner import Joiner
from tests.edge_agent.doubles.hub_double import HubDouble
from wire.process.exit_codes import ExitCode, ExitError


def pair(authority: Authority) -> tuple[bytes, bytes]:
    joiner = Joiner()
    certificate = authority.issue_device(joiner.csr().encode(), "demo--d1", utc_now())
    from cloud_hub.security.authority import encode_certificate  # noqa: PLC0415

    return encode_certificate(certificate).encode(), joiner.key_pem()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    (tmp_path / "pki").mkdir()
    return Authority.open(tmp_path / "pki", utc_now())


@pytest.fixture
def saved(tmp_path: Path, authority: Authority) -> Identity:
    return HubDouble().identity().save(tmp_path / "d", *pair(authority), authority.certificate_pem)


def serial(folder: Path) -> int:
    return x509.load_pem_x509_certificate((folder / "device.pem").read_bytes()).serial_number


def test_certificate_and_key_lie_in_one_private_file(saved, tmp_path):
    assert (tmp_path / "d" / "device.pem").read_bytes().count(b"-----BEGIN") == 2
    assert not (tmp_path / "d" / "device.key").exists()
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "d").iterdir()} == {0o600}
    found = load_identity(tmp_path / "d")
    assert (found.device, found.hub_url, found.certificate_ms) == (saved.device, "", (0, 0))
    assert isinstance(found.tls_context(), ssl.SSLContext)


def old_format(folder: Path, authority: Authority) -> None:
    """As the first version wrote it: two files, and no address of the hub."""
    certificate, key = pair(authority)
    (folder / "device.pem").write_bytes(certificate)
    (folder / "device.key").write_bytes(key)
    (folder / "device.key").chmod(0o600)
    card = json.loads((folder / "identity.json").read_text())
    for later in ("hub_url", "certificate_ms"):
        card.pop(later)
    (folder / "identity.json").write_text(json.dumps({**card, "format": 1}))


def test_a_folder_of_the_first_format_opens_and_becomes_the_second_when_it_renews(saved, tmp_path, authority):
    del saved
    folder = tmp_path / "d"
    old_format(folder, authority)
    found = load_identity(folder)
    assert found.hub_url == ""
    found.tls_context()
    before = serial(folder)
    found.replace_certificate(*pair(authority), authority.certificate_pem)
    assert serial(folder) != before
    assert not (folder / "device.key").exists()
    assert json.loads((folder / "identity.json").read_text())["format"] == FORMAT
    load_identity(folder).tls_context()


def test_a_crash_after_the_new_pair_leaves_a_folder_that_opens(saved, tmp_path, authority):
    """The key of the first format is deleted last: beside a new pair it must not be taken for the new pair's key."""
    folder = tmp_path / "d"
    old_format(folder, authority)
    stale = (folder / "device.key").read_bytes()
    saved.replace_certificate(*pair(authority), authority.certificate_pem)
    (folder / "device.key").write_bytes(stale)
    load_identity(folder).tls_context()


def test_a_folder_of_a_newer_version_says_so(saved, tmp_path):
    del saved
    path = tmp_path / "d" / "identity.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": FORMAT + 1, "later": 1}))
    with pytest.raises(ExitError, match="newer version") as stop:
        load_identity(tmp_path / "d")
    assert stop.value.code is ExitCode.CREDENTIALS


@pytest.mark.parametrize("damage", ["", "x", "-----BEGIN CERTIFICATE-----\n"])
def test_a_damaged_certificate_is_one_line(saved, tmp_path, damage):
    for name in ("ca.pem", "device.pem"):
        kept = (tmp_path / "d" / name).read_bytes()
        (tmp_path / "d" / name).write_text(damage)
        with pytest.raises(ExitError) as stop:
            saved.tls_context()
        assert stop.value.code is ExitCode.CREDENTIALS
        assert "\n" not in str(stop.value)
        (tmp_path / "d" / name).write_bytes(kept)


def test_several_authorities_are_pinned_one_by_one(saved, tmp_path, authority):
    (tmp_path / "next").mkdir()
    coming = Authority.open(tmp_path / "next", utc_now())
    both = authority.certificate_pem + coming.certificate_pem
    saved.replace_certificate(*pair(coming), both)
    assert saved.trusted == (*authority.trusted, *coming.trusted)
    saved.tls_context()

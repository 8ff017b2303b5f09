"""CA rotation: which CA signs, which issues, which are trusted; and a crash at every step."""

import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from cloud_hub.security.authorities import RotatingAuthority, RotationError, hash_subject_name
from cloud_hub.security.authority import Authority, chain_contains, is_issued_by, is_matching_pair
from tests.cloud_hub.doubles.joiner import Joiner

NOW = datetime(2026, 5, 1, tzinfo=UTC)
DEVICE = "demo--cam-1"


@pytest.fixture
def authorities(tmp_path):
    return RotatingAuthority.open(tmp_path, NOW)


def ca(pem: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pem.encode())


def device(authorities: RotatingAuthority) -> x509.Certificate:
    return authorities.issue_device(Joiner().csr().encode(), DEVICE, NOW)


def issuer(certificate: x509.Certificate, authorities: RotatingAuthority) -> int:
    """Which of the trusted CAs issued it."""
    return [is_issued_by(certificate, ca(each)) for each in authorities.trusted].index(True)


def speaker(authorities: RotatingAuthority) -> str:
    """SHA-256 of the CA that signs replies."""
    signature = authorities.sign(b"reply")
    for each in authorities.trusted:
        key = ca(each).public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey)
        try:
            key.verify(signature, b"reply", ec.ECDSA(hashes.SHA256()))
        except InvalidSignature:
            continue
        return ca(each).fingerprint(hashes.SHA256()).hex()
    raise AssertionError("nobody")


def test_alone_one_ca_does_it_all(authorities):
    assert len(authorities.trusted) == 1
    assert issuer(device(authorities), authorities) == 0
    assert speaker(authorities) == authorities.sha256 == authorities.issuer_sha256


def test_during_a_rotation_the_old_one_speaks_and_the_new_one_issues(authorities, tmp_path):
    old = authorities.sha256
    new = authorities.begin_rotation(NOW)
    assert new != old
    assert len(authorities.trusted) == 2
    assert issuer(device(authorities), authorities) == 1
    assert speaker(authorities) == authorities.sha256 == old
    assert authorities.issuer_sha256 == new
    server = authorities.ensure_server((), NOW)
    assert chain_contains(server.certificate, old)
    assert not chain_contains(server.certificate, new)
    again = RotatingAuthority.open(tmp_path, NOW)
    assert (again.sha256, again.issuer_sha256, again.trusted) == (old, new, authorities.trusted)


def test_after_it_only_the_new_one_is_left_and_the_old_key_is_gone(authorities, tmp_path):
    old_key = (tmp_path / "ca.key").read_bytes()
    old_pair = authorities.ensure_client("hub", NOW)
    before = old_pair.certificate.read_bytes()
    new = authorities.begin_rotation(NOW)
    assert authorities.finish_rotation() == new
    assert (authorities.sha256, authorities.issuer_sha256, len(authorities.trusted)) == (new, new, 1)
    assert not any(old_key == path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert authorities.ensure_client("hub", NOW).certificate.read_bytes() != before
    assert chain_contains(authorities.ensure_server((), NOW).certificate, new)
    assert RotatingAuthority.open(tmp_path, NOW).sha256 == new


def test_steps_out_of_order_are_refused(authorities):
    with pytest.raises(RotationError, match="no rotation"):
        authorities.finish_rotation()
    authorities.begin_rotation(NOW)
    with pytest.raises(RotationError, match="under way"):
        authorities.begin_rotation(NOW)


def test_trusted_files_hold_what_counts_and_nothing_else(authorities):
    def names() -> list[str]:
        return sorted(path.name for path in authorities.trusted_folder.iterdir())

    assert names() == sorted(f"{hash_subject_name(pem)}.0" for pem in authorities.trusted)
    authorities.begin_rotation(NOW)
    assert len(names()) == 2
    assert authorities.trusted_file.read_text().count("BEGIN CERTIFICATE") == 2
    authorities.finish_rotation()
    assert names() == [f"{hash_subject_name(authorities.trusted[0])}.0"]
    assert authorities.trusted_file.read_text() == authorities.trusted[0]


def test_openssl_computes_the_same_file_name(authorities):
    authorities.begin_rotation(NOW)
    for path in authorities.trusted_folder.iterdir():
        asked = ["openssl", "x509", "-hash", "-noout", "-in", str(path)]
        found = subprocess.run(asked, check=True, capture_output=True, text=True, timeout=60).stdout
        assert f"{found.strip()}.0" == path.name


CRASHES: dict[str, Callable[[Path], object]] = {
    "new key, no certificate yet": lambda folder: (folder / "ca-next.pem").unlink(),
    "key moved, certificate not": lambda folder: (folder / "ca-next.key").replace(folder / "ca.key"),
    "no trusted files": lambda folder: (folder / "trusted.pem").unlink(),
}


@pytest.mark.parametrize("crash", CRASHES)
def test_a_crash_between_two_files_is_healed_at_the_next_start(tmp_path, crash):
    RotatingAuthority.open(tmp_path, NOW).begin_rotation(NOW)
    CRASHES[crash](tmp_path)
    healed = RotatingAuthority.open(tmp_path, NOW)
    assert is_matching_pair(tmp_path / "ca.pem", tmp_path / "ca.key")
    assert is_issued_by(device(healed), ca(healed.trusted[-1]))
    if healed.coming:
        healed.finish_rotation()
    assert RotatingAuthority.open(tmp_path, NOW).coming is None


def test_a_foreign_successor_is_no_reason_to_stop(authorities, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    Authority.open(tmp_path / "elsewhere", NOW)
    (tmp_path / "elsewhere" / "ca.pem").rename(tmp_path / "ca-next.pem")
    assert RotatingAuthority.open(tmp_path, NOW).sha256 == authorities.sha256


def test_each_generation_has_a_name_of_its_own(authorities):
    authorities.begin_rotation(NOW)
    assert len({ca(each).subject for each in authorities.trusted}) == 2


def test_devices_get_certificates_of_the_configured_life(authorities):
    authorities.set_device_life(timedelta(days=2))
    authorities.begin_rotation(NOW)
    certificate = device(authorities)
    assert certificate.not_valid_after_utc == NOW + timedelta(days=2)
    assert certificate.not_valid_before_utc == NOW - timedelta(minutes=5)


WALLS = {"1970": datetime(1970, 1, 1, tzinfo=UTC), "ten years ahead": NOW + timedelta(days=3650), "right": NOW}


@pytest.mark.parametrize("first", WALLS)
@pytest.mark.parametrize("then", WALLS)
def test_the_hubs_own_certificates_are_good_by_its_clock_and_beyond_hub_time(authorities, first, then):
    """Its broker and its own link judge by this machine's clock, devices by the hub time they have heard of."""
    hub_time = NOW
    for wall in (WALLS[first], WALLS[then]):
        hub_time = max(hub_time, wall)  # what was stored under a wrong clock stays
        for pair in (authorities.ensure_server((), wall, hub_time), authorities.ensure_client("hub", wall, hub_time)):
            found = x509.load_pem_x509_certificate(pair.certificate.read_bytes())
            assert found.not_valid_before_utc <= wall < found.not_valid_after_utc
            assert found.not_valid_after_utc > hub_time + timedelta(days=100)


def test_a_stand_in_lives_for_five_minutes_and_carries_the_name(authorities, tmp_path):
    pair = authorities.current.issue_stand_in(tmp_path, DEVICE, NOW)
    found = x509.load_pem_x509_certificate(pair.certificate.read_bytes())
    assert found.not_valid_after_utc == NOW + timedelta(minutes=5)
    assert [part.value for part in found.subject] == [DEVICE]

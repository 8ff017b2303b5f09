"""Enrolment: invites, proof of possession, rejections, the signed reply and the rate limit."""

import base64
import hashlib
import json
from datetime import timedelta

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from hypothesis import given
from hypothesis import strategies as st

from cloud_hub.enrollment.enrollment import EnrollmentService, EnrolRequest, Rejection, build_proof_text, encode_invite
from cloud_hub.enrollment.rate_limit import AttemptLimiter
from cloud_hub.enrollment.replies import BrokerAddress, EnrollmentReply, HubAddress
from cloud_hub.registry.device_states import DeviceState
from cloud_hub.registry.registry import Registry
from cloud_hub.security.authority import Authority, utc_now
from cloud_hub.security.hub_keys import HubCard
from tests.cloud_hub.doubles.joiner import Joiner

DEVICE = "demo--cam-1"
BASE_POINT = bytes.fromhex("5866666666666666666666666666666666666666666666666666666666666666")
HUB = HubCard("hub-1", "local", b"h" * 32, b"s" * 32)


@pytest.fixture
def registry(tmp_path):
    opened = Registry.open(tmp_path / "devices.db")
    yield opened
    opened.close()


@pytest.fixture
def authority(tmp_path):
    return Authority.open(tmp_path, utc_now())


@pytest.fixture
def issuer(registry, authority):
    return EnrollmentService(registry, authority, HubAddress(BrokerAddress("127.0.0.1", 18883), (HUB,)))


@pytest.fixture
def token(registry):
    return registry.invite(DEVICE, 0, 3600.0).token


def request(fields: dict[str, str]) -> EnrolRequest:
    return msgspec.convert(fields, EnrolRequest)


def test_one_request_binds_certificate_signing_and_hpke_key(issuer, registry, authority, token):
    joiner = Joiner()
    reply = issuer.enrol_device(request(joiner.request(token)), 1234)
    assert isinstance(reply, EnrollmentReply)
    body = json.loads(reply.body)
    certificate = x509.load_pem_x509_certificate(body["certificate"].encode())
    assert certificate.public_key() == joiner.tls.public_key()
    assert [part.value for part in certificate.subject] == [DEVICE]
    device = registry.device(DEVICE)
    assert device.signing_key == joiner.signing.public_key()
    assert device.hpke_key == joiner.hpke.public_key()
    assert device.serial == f"{certificate.serial_number:x}"
    assert {key: body[key] for key in ("device", "ca", "broker", "hub_time_ms")} == {
        "device": DEVICE,
        "ca": authority.certificate_pem.decode(),
        "broker": {"host": "127.0.0.1", "port": 18883},
        "hub_time_ms": 1234,
    }
    assert body["hubs"] == [
        {
            "name": "hub-1",
            "region": "local",
            "hpke_key": base64.b64encode(b"h" * 32).decode(),
            "signing_key": base64.b64encode(b"s" * 32).decode(),
        }
    ]


def test_reply_proves_itself_to_whoever_holds_the_invite(issuer, authority, token):
    reply = issuer.enrol_device(request(Joiner().request(token)), 0)
    assert isinstance(reply, EnrollmentReply)
    ca = x509.load_pem_x509_certificate(json.loads(reply.body)["ca"].encode())
    assert hashlib.sha256(ca.public_bytes(serialization.Encoding.DER)).hexdigest() == authority.sha256
    public = ca.public_key()
    assert isinstance(public, ec.EllipticCurvePublicKey)
    public.verify(base64.b64decode(reply.signature), reply.body.encode(), ec.ECDSA(hashes.SHA256()))


def test_second_use_of_an_invite_makes_no_second_device(issuer, registry, token):
    first = Joiner()
    assert isinstance(issuer.enrol_device(request(first.request(token)), 0), EnrollmentReply)
    second = issuer.enrol_device(request(Joiner().request(token)), 0)
    assert isinstance(second, Rejection)
    assert second.invite
    assert registry.device(DEVICE).signing_key == first.signing.public_key()


def test_expired_invite_makes_no_device(issuer, registry, token):
    reply = issuer.enrol_device(request(Joiner().request(token)), 3_600_000)
    assert isinstance(reply, Rejection)
    assert "expired" in reply.error
    assert registry.device(DEVICE) is None


def test_invite_of_a_revoked_device_is_refused(issuer, registry, token):
    assert isinstance(issuer.enrol_device(request(Joiner().request(token)), 0), EnrollmentReply)
    later = registry.invite(DEVICE, 0, 3600.0).token
    registry.set_state(DEVICE, DeviceState.REVOKED, 1)
    assert isinstance(issuer.enrol_device(request(Joiner().request(later)), 2), Rejection)


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


@pytest.mark.parametrize(
    "changed",
    [
        {"signing_key": b64(Joiner().signing.public_key().public_bytes_raw())},
        {"hpke_key": b64(Joiner().hpke.public_key().public_bytes_raw())},
        {"csr": Joiner().csr()},
        {"proof": b64(bytes(64))},
        {"proof": "short"},
        {"proof": ""},
        {"signing_key": "not base64 !"},
        {"hpke_key": b64(bytes(31))},
        {"hpke_key": "ü"},
        {"csr": ""},
        {"csr": "x" * 10_000},
    ],
)
def test_a_part_that_the_proof_does_not_cover_is_refused_and_leaves_the_invite_good(issuer, registry, token, changed):
    reply = issuer.enrol_device(request(Joiner().request(token, **changed)), 0)
    assert isinstance(reply, Rejection)
    assert not reply.invite
    assert registry.device(DEVICE) is None
    assert isinstance(issuer.enrol_device(request(Joiner().request(token)), 0), EnrollmentReply)


def test_a_signing_key_for_which_anybody_can_sign_is_refused(issuer, registry, token):
    joiner = Joiner()
    weak = (1).to_bytes(32, "little")  # the neutral point: S B = R for every message
    fields = joiner.request(token, signing_key=b64(weak), proof=b64(BASE_POINT + (1).to_bytes(32, "little")))
    asked = request(fields)
    Ed25519PublicKey.from_public_bytes(weak).verify(
        base64.b64decode(asked.proof), build_proof_text(asked, weak, base64.b64decode(asked.hpke_key))
    )
    assert isinstance(issuer.enrol_device(asked, 0), Rejection)
    assert registry.device(DEVICE) is None


def test_hpke_key_that_everybody_can_open_is_refused(issuer, token):
    class SmallOrder:
        def public_key(self):
            return self

        def public_bytes_raw(self):
            return bytes(32)

    joiner = Joiner()
    joiner.hpke = SmallOrder()  # type: ignore[assignment]
    reply = issuer.enrol_device(request(joiner.request(token)), 0)
    assert isinstance(reply, Rejection)
    assert "X25519" in reply.error


def test_proof_made_for_another_invite_is_refused(issuer, registry, token):
    other = registry.invite("demo--cam-2", 0, 3600.0).token
    stolen = Joiner().request(token)
    assert isinstance(issuer.enrol_device(request({**stolen, "token": other}), 0), Rejection)


def test_invite_carries_where_whom_and_the_token():
    text = encode_invite("http://127.0.0.1:8080", "ab" * 32, "secret", DEVICE)
    assert text.startswith("skerry1:")
    packed = text.removeprefix("skerry1:")
    assert msgspec.msgpack.decode(base64.urlsafe_b64decode(packed + "=" * (-len(packed) % 4))) == {
        "url": "http://127.0.0.1:8080",
        "ca_sha256": "ab" * 32,
        "token": "secret",
        "device": DEVICE,
        "root_sha256": "",
        "made_ms": 0,
    }


def test_thousand_tries_a_minute_are_cut_off_and_others_go_on():
    gate = AttemptLimiter(rate_per_s=20.0, burst=2000.0, failures_per_s=10 / 60, failures=20.0)
    looked_at = 0
    for attempt in range(1000):
        now = 100.0 + attempt * 0.06
        if gate.admit_attempt("10.0.0.1", now):
            looked_at += 1
            gate.record_failure("10.0.0.1", now)
    assert 20 <= looked_at <= 31
    assert gate.admit_attempt("10.0.0.2", 160.0)


def test_wrong_tokens_are_forgiven_with_time():
    gate = AttemptLimiter(rate_per_s=20.0, burst=200.0, failures_per_s=1.0, failures=2.0)
    for _ in range(2):
        gate.record_failure("a", 0.0)
    assert not gate.admit_attempt("a", 0.5)
    assert gate.admit_attempt("a", 1.5)


def test_everybody_together_is_limited_too():
    gate = AttemptLimiter(rate_per_s=1.0, burst=3.0, failures_per_s=1.0, failures=2.0)
    assert [gate.admit_attempt(f"10.0.0.{n}", 0.0) for n in range(5)] == [True, True, True, False, False]


def test_who_tries_at_every_hub_of_a_region_may_try_no_more_than_at_one():
    def admitted(hubs: int) -> tuple[int, int]:
        gates = [AttemptLimiter(rate_per_s=1.0, burst=60.0, failures_per_s=0.1, failures=12.0) for _ in range(hubs)]
        for gate in gates:
            gate.divide_rates(hubs, 0.0)
        honest = sum(gate.admit_attempt(f"10.0.0.{n}", n / 10) for gate in gates for n in range(100))
        guesses = 0
        for gate in gates:
            gate.divide_rates(hubs, 100.0)
            for second in range(100, 130):
                if gate.admit_attempt("10.9.9.9", float(second)):
                    guesses += 1
                    gate.record_failure("10.9.9.9", float(second))
        return honest, guesses

    alone, three = admitted(1), admitted(3)
    assert abs(three[0] - alone[0]) <= 3
    assert abs(three[1] - alone[1]) <= 3
    assert alone[1] < 30


def test_a_hub_that_is_left_alone_has_the_whole_rate_of_attempts_again():
    gate = AttemptLimiter(rate_per_s=4.0, burst=4.0, failures_per_s=1.0, failures=2.0)
    gate.divide_rates(4, 0.0)
    assert [gate.admit_attempt(name, 0.0) for name in "ab"] == [True, False]
    gate.divide_rates(1, 0.0)
    assert [gate.admit_attempt(name, 0.5) for name in "cde"] == [True, True, False]


@given(st.lists(st.tuples(st.integers(0, 5000), st.booleans()), max_size=200))
def test_the_gate_remembers_a_bounded_number_of_addresses(tries):
    gate = AttemptLimiter(rate_per_s=1e9, burst=1e9, failures_per_s=0.01, failures=3.0)
    for number, failed in tries:
        gate.admit_attempt(str(number), 0.0)
        if failed:
            gate.record_failure(str(number), 0.0)
    assert gate.remembered_addresses <= 1024


def test_many_addresses_push_the_oldest_out():
    gate = AttemptLimiter(rate_per_s=1e9, burst=1e9, failures_per_s=0.01, failures=1.0)
    for number in range(2000):
        gate.record_failure(str(number), 0.0)
    assert gate.remembered_addresses == 1024
    assert not gate.admit_attempt("1999", 0.0)


def test_certificate_ends_when_the_registry_says(issuer, registry, token):
    issuer.enrol_device(request(Joiner().request(token)), 0)
    ends_ms = registry.device(DEVICE).certificate_ends_ms
    assert abs(ends_ms / 1000 - (utc_now() + timedelta(days=7)).timestamp()) < 60

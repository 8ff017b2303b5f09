"""Certificate renewal and retirement under the identity key; unknown devices and wrong proofs get the same answer."""

import base64
import json
from collections.abc import Callable
from hashlib import sha256

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from cloud_hub.enrollment.enrollment import EnrollmentService, Rejection
from cloud_hub.enrollment.renewal import (
    RENEW_BURST,
    DeviceRetireRequest,
    RenewalService,
    RenewRequest,
    RetireReply,
    build_renew_text,
    build_retire_text,
)
from cloud_hub.enrollment.replies import BrokerAddress, EnrollmentReply, HubAddress
from cloud_hub.registry.device_states import DeviceState, StateReason
from cloud_hub.registry.registry import DeviceKeys, Registry
from cloud_hub.security.authorities import RotatingAuthority
from cloud_hub.security.authority import is_issued_by, utc_now
from cloud_hub.security.hub_keys import HubCard
from tests.cloud_hub.doubles.joiner import Joiner
from tests.cloud_hub.enrollment.test_enrollment import BASE_POINT, request

DEVICE = "demo--cam-1"
LEDGER = "ab" * 32
PLACE = HubAddress(BrokerAddress("127.0.0.1", 18883), (HubCard("hub-1", "local", b"h" * 32, b"s" * 32),))


class Office:
    """A hub with one enrolled device."""

    def __init__(self, folder) -> None:
        self.registry = Registry.open(folder / "devices.db")
        self.authorities = RotatingAuthority.open(folder, utc_now())
        self.joiner = Joiner()
        issuer = EnrollmentService(self.registry, self.authorities, PLACE)
        token = self.registry.invite(DEVICE, 0, 3600.0).token
        assert isinstance(issuer.enrol_device(request(self.joiner.request(token)), 0), EnrollmentReply)
        self.renewals = RenewalService(self.registry, self.authorities, PLACE)
        self.renewals.set_url("https://hub:8443")
        self.csr = Joiner().csr()

    def ask(self, **changes: str) -> RenewRequest:
        """With a new key, signed by the identity key; `changes` come after the proof."""
        csr = Joiner().csr()
        fields = {"device": DEVICE, "csr": csr, "proof": self.proof(build_renew_text(DEVICE, csr)), **changes}
        return RenewRequest(**fields)

    def proof(self, text: bytes, by: Ed25519PrivateKey | None = None) -> str:
        return base64.b64encode((by or self.joiner.signing).sign(text)).decode()

    def renew(self, asked: RenewRequest | None = None, now: float = 0.0) -> EnrollmentReply | Rejection:
        return self.renewals.renew(asked or self.ask(), 1234, now)

    def retire(self, **changes: str) -> RetireReply | Rejection:
        fields = {"device": DEVICE, "ledger": LEDGER, "proof": self.proof(build_retire_text(DEVICE, LEDGER)), **changes}
        return self.renewals.retire(DeviceRetireRequest(**fields), 9)


@pytest.fixture
def office(tmp_path):
    opened = Office(tmp_path)
    yield opened
    opened.registry.close()


def test_the_identity_key_alone_gets_a_new_certificate(office):
    before = office.registry.device(DEVICE)
    asked = office.ask()
    reply = office.renew(asked)
    assert isinstance(reply, EnrollmentReply)
    body = json.loads(reply.body)
    certificate = x509.load_pem_x509_certificate(body["certificate"].encode())
    assert is_issued_by(certificate, x509.load_pem_x509_certificate(body["ca"].encode()))
    assert body["request"] == sha256(asked.csr.encode()).hexdigest()
    assert (body["device"], body["hub_url"], body["trusted"]) == (DEVICE, "https://hub:8443", [body["ca"]])
    after = office.registry.device(DEVICE)
    assert after.serial == f"{certificate.serial_number:x}" != before.serial
    assert after.signing_key == before.signing_key


def test_during_a_rotation_a_renewal_brings_both_authorities_under_the_old_signature(office):
    old = office.authorities.certificate_pem.decode()
    new = office.authorities.begin_rotation(utc_now())
    reply = office.renew()
    assert isinstance(reply, EnrollmentReply)
    body = json.loads(reply.body)
    assert (body["ca"], len(body["trusted"])) == (old, 2)
    certificate = x509.load_pem_x509_certificate(body["certificate"].encode())
    assert is_issued_by(certificate, x509.load_pem_x509_certificate(body["trusted"][1].encode()))
    assert office.registry.device(DEVICE).authority == new


@pytest.mark.parametrize("state", [s for s in DeviceState if s is not DeviceState.ACTIVE])
def test_only_an_active_device_is_renewed(office, state):
    office.registry.set_state(DEVICE, state, 1)
    before = office.registry.device(DEVICE)
    reply = office.renew()
    assert isinstance(reply, Rejection)
    assert (reply.kind, office.registry.device(DEVICE)) == (state.value, before)


ATTACKS: dict[str, Callable[[Office], RenewRequest]] = {
    "no such device": lambda o: o.ask(device="demo--nobody"),
    "another's request": lambda o: o.ask(csr=Joiner().csr()),
    "another's key": lambda o: o.ask(
        proof=o.proof(build_renew_text(DEVICE, o.csr), Ed25519PrivateKey.generate()), csr=o.csr
    ),
    "proof for another device": lambda o: o.ask(proof=o.proof(build_renew_text("demo--cam-2", o.csr)), csr=o.csr),
    "proof of a retirement": lambda o: o.ask(proof=o.proof(build_retire_text(DEVICE, LEDGER))),
    "no proof": lambda o: o.ask(proof=""),
    "no base64": lambda o: o.ask(proof="ü"),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_wrong_proof_and_an_unknown_device_are_not_told_apart(office, attack):
    before = office.registry.device(DEVICE)
    reply = office.renew(ATTACKS[attack](office))
    assert isinstance(reply, Rejection)
    assert (reply.error, reply.invite) == (office.renew(office.ask(device="demo--x")).error, True)
    assert office.registry.device(DEVICE) == before


def test_a_request_without_a_proper_key_is_refused_and_named(office):
    bad = "-----BEGIN"
    asked = RenewRequest(DEVICE, bad, office.proof(build_renew_text(DEVICE, bad)))
    reply = office.renew(asked)
    assert isinstance(reply, Rejection)
    assert (reply.kind, reply.invite) == ("request", False)


def test_a_device_that_asks_all_the_time_is_slowed_down(office):
    kinds = [isinstance(office.renew(), EnrollmentReply) for _ in range(int(RENEW_BURST) + 5)]
    assert kinds == [True] * int(RENEW_BURST) + [False] * 5
    assert isinstance(office.renew(now=601.0), EnrollmentReply)


@pytest.mark.parametrize("hub_time_ms", [0, 2_500_000_000_000])
def test_a_certificate_is_good_by_the_brokers_clock_whatever_hub_time_is(office, hub_time_ms):
    reply = office.renewals.renew(office.ask(), hub_time_ms, 0.0)
    assert isinstance(reply, EnrollmentReply)
    body = json.loads(reply.body)
    certificate = x509.load_pem_x509_certificate(body["certificate"].encode())
    assert certificate.not_valid_before_utc <= utc_now() < certificate.not_valid_after_utc
    assert body["hub_time_ms"] == hub_time_ms


def test_a_device_retires_itself_once_and_for_all(office):
    assert office.retire() == RetireReply(DEVICE, "retired")
    found = office.registry.device(DEVICE)
    assert (found.state, found.why, found.ledger) == (DeviceState.RETIRED, StateReason.DEVICE, LEDGER)
    other = "cd" * 32
    again = office.retire(ledger=other, proof=office.proof(build_retire_text(DEVICE, other)))
    assert isinstance(again, RetireReply)
    assert office.registry.device(DEVICE) == found


@pytest.mark.parametrize("state", [DeviceState.SUSPENDED, DeviceState.REVOKED])
def test_a_device_that_is_not_heard_cannot_retire_itself(office, state):
    office.registry.set_state(DEVICE, state, 1)
    assert isinstance(office.retire(), Rejection)
    assert office.registry.device(DEVICE).state is state


def test_a_renewal_cannot_be_turned_into_a_retirement(office):
    asked = office.ask()
    assert isinstance(office.retire(proof=asked.proof), Rejection)
    assert office.registry.device(DEVICE).active


def test_what_became_of_requests_is_counted(office):
    office.renew()
    office.renew(office.ask(proof=""))
    office.retire()
    office.renew()
    assert office.renewals.counts == {"renewed": 1, "refused.stranger": 1, "retired": 1, "refused.retired": 1}


def test_a_key_for_which_anybody_can_sign_renews_nothing_though_an_earlier_hub_enrolled_it(office):
    weak, name = (1).to_bytes(32, "little"), "demo--old-1"
    token = office.registry.invite(name, 0, 3600.0).token
    office.registry.enrol(token, DeviceKeys(weak, b"h" * 32, "1", 9_999_999_999_999), 0)
    csr, forged = Joiner().csr(), BASE_POINT + (1).to_bytes(32, "little")
    Ed25519PublicKey.from_public_bytes(weak).verify(forged, build_renew_text(name, csr))  # OpenSSL takes it
    asked = RenewRequest(device=name, csr=csr, proof=base64.b64encode(forged).decode())
    assert isinstance(office.renew(asked), Rejection)

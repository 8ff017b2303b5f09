"""What the device signs to enrol, to renew and of its exported ledger, read by the second implementation."""

import base64
import json
from pathlib import Path

from edge_agent.identity.enrollment import Invite, generate_keys, make_enrolment_request
from edge_agent.identity.renewal_worker import make_renewal_request
from edge_agent.ledger_audit.export import export_ledger
from tests.edge_agent.doubles.ledger_bench import LedgerBench
from tests.second_implementation import frames, vectors

FROZEN = {vector["name"]: vector for vector in vectors.load("frames.json")["statements"]}


def test_the_request_of_a_new_device_is_proved_as_the_page_says() -> None:
    keys = generate_keys()
    invite = Invite(url="https://hub", ca_sha256="aa", token="T0ken", device=vectors.DEVICE)
    body = json.loads(make_enrolment_request(invite, keys, "serial-1"))
    signing, hpke, proof = (base64.b64decode(body[name]) for name in ("signing_key", "hpke_key", "proof"))
    assert signing == keys.signing.public_key().public_bytes_raw()
    text = frames.enrolment_text(body["token"], body["csr"], signing, hpke, body["hardware"])
    assert frames.verify(signing, proof, text)


def test_a_renewal_is_proved_as_it_is_frozen(tmp_path: Path) -> None:
    identity, vector = LedgerBench(tmp_path).identity, FROZEN["renewal"]
    body = json.loads(make_renewal_request(identity, vector["csr"].encode()))
    public = identity.signing.public_key().public_bytes_raw()
    assert frames.verify(public, base64.b64decode(body["proof"]), frames.renewal_text(identity.device, vector["csr"]))


def test_an_exported_ledger_is_signed_as_the_page_says(tmp_path: Path) -> None:
    bench = LedgerBench(tmp_path)
    bench.append_entries(3)
    target = tmp_path / "ledger.jsonl"
    export_ledger(bench.db, bench.identity, target, bench.now_ms)
    public = bench.identity.signing.public_key().public_bytes_raw()
    assert frames.is_ledger_export_signed(target.read_bytes(), public)
    assert not frames.is_ledger_export_signed(target.read_bytes().replace(b"clinic", b"clinik", 1), public)

"""What devices sign to enrol, renew and retire: the hub verifies the frozen texts, whatever release signed them."""

from typing import Any

from cloud_hub.enrollment.enrollment import EnrolRequest, build_proof_text
from cloud_hub.enrollment.renewal import build_renew_text, build_retire_text
from tests.second_implementation import vectors

FROZEN: dict[str, dict[str, Any]] = {
    vector["name"]: vector for vector in vectors.load("frames.json")["statements"]
}  # fmt: skip


def test_the_hub_verifies_a_proof_over_the_frozen_texts() -> None:
    enrolment, renewal, retirement = (FROZEN[name] for name in ("enrolment", "renewal", "retirement"))
    request = EnrolRequest(enrolment["token"], enrolment["csr"], "", "", "", enrolment["hardware"])
    assert build_proof_text(request, enrolment["signing"], enrolment["hpke"]) == enrolment["proved"]
    assert build_renew_text(renewal["device"], renewal["csr"]) == renewal["renewed"]
    assert build_retire_text(retirement["device"], retirement["ledger"]) == retirement["retired"]

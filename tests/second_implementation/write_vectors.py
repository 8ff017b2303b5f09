"""Writes the vectors that `tests/vectors` does not have yet: `python -m tests.second_implementation.write_vectors`.

Rule: what is there is never changed. A format that gains a field gains a new vector beside the old one.
"""

import base64
import json
from typing import Any

from tests.second_implementation import frames, ledger
from tests.second_implementation.records import WORDS, Record, encode_record
from tests.second_implementation.vectors import (
    DEVICE,
    DEVICE_HPKE,
    DEVICE_SIGNING,
    EPOCH,
    FOLDER,
    HUB_HPKE,
    HUB_SIGNING,
    NOW_MS,
    SEQ,
    fixed_bytes,
    from_json,
    to_json,
)

MODEL = Record("ModelRef", {"name": "digits", "version": 7, "cut": "block2", "codec": "pack4"})
POLICY = fixed_bytes("policy").hex()
DEVICE_KEY_ID = frames.key_id(frames.signing_public(DEVICE_SIGNING))
READER_KEY_ID = frames.key_id(frames.hpke_public(DEVICE_HPKE))
HUB_KEY_ID = frames.key_id(frames.signing_public(HUB_SIGNING))
SEAL_KEY_ID = frames.key_id(frames.hpke_public(HUB_HPKE))
SHORT_TENSOR = Record("Tensor", {"dtype": "UINT8", "shape": [2, 3], "data": bytes(range(6))})
SHORT_QUESTION = {
    "id": "0" * 32, "model": MODEL, "policy": POLICY, "region": "local", "fields": {"features": SHORT_TENSOR},
    "budget_s": 2.5, "audit": False, "trace": "",
}  # fmt: skip
QUESTION = {
    **SHORT_QUESTION, "id": fixed_bytes("answer").hex()[:32], "region": "eu-central", "fields": {
        "features": Record("Tensor", {"dtype": "UINT8", "shape": [8, 32], "data": bytes(range(256))}),
        "confidence": Record("Tensor", {"dtype": "FP32", "shape": [], "data": b"\0\0\x80>"}),
    }, "audit": True, "trace": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "rule": "demo@1+shop@3",
    "data_class": "m\u00fcll", "subject": fixed_bytes("subject"), "keep_days": 3, "priority": 2,
    "layers": [fixed_bytes("layer 1").hex(), fixed_bytes("layer 2").hex()],
}  # fmt: skip
SHORT_PREDICTION = {"label": 3, "confidence": 0.75, "scores": [0.0, 0.25, 0.0, 0.75], "model": "digits@7"}
USAGE = {
    "model": "qwen3-0.6b", "prompt_tokens": 812, "generated_tokens": 65_536, "cached_tokens": 768, "cut": True,
    "estimated": True,
}  # fmt: skip
TEXT = "Die Lieferung kommt \u00fcbermorgen.\n" * 20
ANSWER_TEXT = {
    "label": -1, "confidence": 0.0, "scores": [], "model": "mail@2", "in_domain": False, "text": TEXT,
    "usage": Record("TextUsage", USAGE),
}  # fmt: skip
SIGNALS = {
    "inferences": 100_000, "errors": 3, "escalated": 12, "confidence": 90_000.5, "confidence_sq": 81_234.125,
    "p95_us": 8123, "rss_bytes": 2**31, "crashes": 1, "starts": 4, "classes": [
        Record("ClassSignals", {"data_class": "open"}),
        Record("ClassSignals", {
            "data_class": "private", "answers": 70_000, "escalated": 9, "confidence": 65_000.25,
            "confidence_sq": 60_000.0625,
        }),
    ],
}  # fmt: skip
AUDIT = {
    "data_class": "open", "share": 0.01, "audited": 400, "agreed": 390, "worse": 5, "better": 7, "told": 40,
    "told_wrong": 6, "told_worse": 2, "told_better": 3,
}  # fmt: skip
SHORT_REPORT = {
    "epoch": EPOCH, "seq": NOW_MS, "counter": 12, "rollout": "r-2026-11", "family": "digits", "state": "downloading",
    "failure": None, "version": 6, "running": fixed_bytes("bundle 6").hex(), "at_ms": NOW_MS - 5,
}  # fmt: skip
REPORT = {
    **SHORT_REPORT, "state": "rolled_back", "failure": "health", "cohort": "control",
    "quality": Record("AuditQuality", {
        "cells": [Record("AuditAgreement", {"data_class": "private", "share": 1.0}), Record("AuditAgreement", AUDIT)],
        "unaudited": ["secret"], "dropped": 2,
    }), "signals": Record("DeviceSignals", SIGNALS), "detail": "p95 \u00fcber 20 ms", "trial_passed": True,
}  # fmt: skip
SHORT_ASSIGNMENT = {
    "epoch": 0, "device": DEVICE, "counter": 13, "issued_ms": NOW_MS, "expires_ms": NOW_MS + 604_800_000,
    "rollout": "r-2026-11", "family": "digits", "path": "models/digits/7.skb", "version": 7,
    "digest": fixed_bytes("bundle 7").hex(),
}  # fmt: skip
ASSIGNMENT = {
    **SHORT_ASSIGNMENT, "cohort": "control", "withdraw": True, "audit_share": 0.125, "soak_s": 60.0,
    "min_inferences": 50, "max_soak_s": 3600.0, "strict": True, "strict_s": 90.5, "report_s": 15.0,
    "needs_release": True,
}  # fmt: skip
HEAD = {"device": DEVICE, "epoch": EPOCH, "entries": 4, "at_ms": NOW_MS, "hash": fixed_bytes("head")}
SHORT_HEAD = {
    "epoch": EPOCH, "entries": 4, "at_ms": NOW_MS, "head": HEAD["hash"],
    "signature": ledger.sign_head(HEAD, DEVICE_SIGNING),
}  # fmt: skip
SPEND = [["bytes", 20_777, 123_456], ["cost/shop", 0, 2**40]]
SEQS = [1, 127, 128, 255, 256, 65_535, 65_536, 2**32 - 1, 2**32, 2**63 - 1]
DIGEST = fixed_bytes("digest of a frame")

# name, channel, kind, fields: notes that are signed
NOTES: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
    ("hello", "up/ask", "HelloNote", {"epoch": EPOCH, "boot": "b" * 32, "agent": "0.2.0", "models": [MODEL]}),
    ("status request", "up/ask", "StatusRequest", {"epoch": EPOCH, "seqs": SEQS}),
    ("ledger head", "up/report", "LedgerHeadReport", {**SHORT_HEAD, "known": 17, "spend": SPEND}),
    ("ledger head, short", "up/report", "LedgerHeadReport", SHORT_HEAD),
    ("receipt", "down/r", "Receipt", {"epoch": EPOCH, "seqs": SEQS}),
    ("refusal", "down/r", "Refusal", {
        "epoch": EPOCH, "seq": SEQ, "digest": DIGEST, "reason": "busy", "retry_after_s": 1.5, "final": False}),
    ("refusal, final", "down/r", "Refusal", {
        "epoch": EPOCH, "seq": 2**63 - 1, "digest": DIGEST, "reason": "policy", "retry_after_s": 0.0, "final": True}),
    ("status", "down/r", "StatusReply", {"epoch": EPOCH, "pending": [1, 2], "unknown": SEQS}),
    ("welcome", "down/r", "WelcomeNote", {"epoch": EPOCH, "hub": "hub-1", "region": "local", "spread_s": 12.5}),
    ("welcome, short", "down/r", "WelcomeNote", {"epoch": EPOCH, "hub": "hub-1", "region": "local"}),
    ("checkpoint", "down/r", "CheckpointNote", {
        "epoch": EPOCH, "entries": 4, "text": ledger.checkpoint("hub-1", 1, fixed_bytes("root"), HUB_SIGNING),
        "index": 0, "received_ms": NOW_MS + 40, "epochs": 1, "inclusion": [fixed_bytes("i1"), fixed_bytes("i2")],
        "consistency": [fixed_bytes("c1")]}),
    ("spend mirror", "down/r", "SpendMirror", {"epoch": EPOCH, "spend": SPEND, "complete": False}),
    ("spend mirror, short", "down/r", "SpendMirror", {"epoch": EPOCH, "spend": []}),
    ("report receipt", "down/r", "ReportReceipt", {"epoch": 0, "seq": NOW_MS}),
    ("deny-all notice", "down/desired", "DenyAllNotice", {"epoch": 0, "counter": 1_790_000_000, "why": "recall\u2014"}),
    ("assignment", "down/desired", "Assignment", ASSIGNMENT),
    ("assignment, short", "down/desired", "Assignment", SHORT_ASSIGNMENT),
)  # fmt: skip
# name, kind, fields, padded size (0 = the next multiple of 64): messages that are sealed
SEALED: tuple[tuple[str, str, str, dict[str, Any], int], ...] = (
    ("question", "up/q", "Escalation", QUESTION, 1024),
    ("question, short", "up/q", "Escalation", SHORT_QUESTION, 0),
    ("verdict", "down/r", "Verdict", {
        "prediction": Record("Prediction", {**SHORT_PREDICTION, "in_domain": True, "text": None, "usage": None}),
        "hub": "hub-1", "region": "local", "queue_s": 0.001, "compute_s": 0.25}, 0),
    ("verdict, short", "down/r", "Verdict", {
        "prediction": Record("Prediction", SHORT_PREDICTION), "hub": "hub-1", "region": "local", "queue_s": 0.0,
        "compute_s": 1e-5}, 0),
    ("verdict with a text", "down/r", "Verdict", {
        "prediction": Record("Prediction", ANSWER_TEXT), "hub": "hub-2", "region": "eu-central", "queue_s": 1.0,
        "compute_s": 8.0}, 1024),
    ("verdict with a short text", "down/r", "Verdict", {
        "prediction": Record("Prediction", {**ANSWER_TEXT, "in_domain": None, "text": "", "usage": Record(
            "TextUsage", {name: USAGE[name] for name in ("model", "prompt_tokens", "generated_tokens")})}),
        "hub": "hub-2", "region": "eu-central", "queue_s": 1.0, "compute_s": 8.0}, 512),
    ("install report", "up/report", "InstallReport", REPORT, 0),
    ("install report, short", "up/report", "InstallReport", SHORT_REPORT, 0),
    ("install report, empty parts", "up/report", "InstallReport", {
        **REPORT, "quality": Record("AuditQuality", {}), "signals": Record("DeviceSignals", {})}, 0),
)  # fmt: skip


def make_signed(name: str, channel: str, kind: str, fields: dict[str, Any]) -> dict[str, Any]:
    """The vector of a signed note."""
    up, message = channel.startswith("up/"), Record(kind, fields)
    about = frames.header(
        DEVICE, fields["epoch"], fields["seq"] if kind == "Refusal" else 0, NOW_MS, DEVICE_KEY_ID if up else HUB_KEY_ID
    )
    binding = frames.order_binding(frames.signing_public(DEVICE_SIGNING)) if channel == "down/desired" else b""
    body = encode_record(message)
    return {
        "name": name, "channel": channel, "suite": frames.SIGNED, "header": about, "message": message,
        "encoded": body, "binding": binding,
        "frame": frames.sign(about, body, DEVICE_SIGNING if up else HUB_SIGNING, channel, binding),
    }  # fmt: skip


def make_sealed(name: str, channel: str, kind: str, fields: dict[str, Any], size: int) -> dict[str, Any]:
    """The vector of a sealed message."""
    up, message = channel.startswith("up/"), Record(kind, fields)
    encoded, once, binding = encode_record(message), fixed_bytes(f"ephemeral key of {name}"), b""
    if kind == "Verdict":
        binding = frames.verdict_binding(
            frames.pad(encode_record(Record("Escalation", QUESTION)), 1024), "digits@7", POLICY
        )
    seq = 0 if kind == "InstallReport" else SEQ
    about = frames.header(DEVICE, EPOCH, seq, NOW_MS, SEAL_KEY_ID if up else READER_KEY_ID)
    padded, to = frames.pad(encoded, size), frames.hpke_public(HUB_HPKE if up else DEVICE_HPKE)
    return {
        "name": name, "channel": channel, "suite": frames.SEALED, "header": about, "message": message,
        "encoded": encoded, "padded": padded, "binding": binding, "ephemeral": once,
        "frame": frames.seal(
            about, padded, to, DEVICE_SIGNING if up else HUB_SIGNING, channel, binding=binding, once=once
        ),
    }  # fmt: skip


def make_bindings() -> list[dict[str, Any]]:
    """Verdict and order bindings; pairs of parts that differ only in where one ends and the next begins."""
    question, device_key = frames.pad(b"question"), frames.signing_public(DEVICE_SIGNING)
    verdicts = [("ab@1", "c"), ("a", "b@1c"), ("digits@7", POLICY)]
    return [
        {"name": f"verdict {number}", "padded": question, "model": model, "policy": policy,
         "binding": frames.verdict_binding(question, model, policy)}
        for number, (model, policy) in enumerate(verdicts, 1)
    ] + [{"name": "order", "signing_key": device_key, "binding": frames.order_binding(device_key)}]  # fmt: skip


def make_keys() -> list[dict[str, Any]]:
    """The private keys of these vectors, made for tests alone."""
    found = []
    for name, private, public in (
        ("device signing", DEVICE_SIGNING, frames.signing_public(DEVICE_SIGNING)),
        ("device HPKE", DEVICE_HPKE, frames.hpke_public(DEVICE_HPKE)),
        ("hub signing", HUB_SIGNING, frames.signing_public(HUB_SIGNING)),
        ("hub HPKE", HUB_HPKE, frames.hpke_public(HUB_HPKE)),
    ):
        found.append({"name": name, "private": private, "public": public, "key_id": frames.key_id(public)})
    return found


def make_topics() -> list[dict[str, Any]]:
    """A topic on each channel, of three devices."""
    channels = ("up/q", "up/ask", "up/state", "up/report", "down/r", "down/desired")
    return [
        {"name": f"{device} {channel}", "device": device, "channel": channel, "topic": frames.topic(device, channel)}
        for device in (DEVICE, "a--b", "tenant-1--" + "x" * 54)
        for channel in channels
    ]


CSR = "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n"


def make_statements() -> list[dict[str, Any]]:
    """What is signed beside frames: erasure requests and the hub's statement."""
    subject, names = fixed_bytes("subject"), [frames.question_name(EPOCH, 1), frames.question_name(0, 2**59)]
    mark = frames.subject_mark(DEVICE, subject)
    body = frames.tombstone_text(
        device=DEVICE, mark=mark.hex(), before_ms=NOW_MS, rows=7, at_ms=NOW_MS + 1, hub="hub-1", region="local",
        named=2, found=1,
    )  # fmt: skip
    return [
        {"name": "erasure request", "device": DEVICE, "subject": subject, "before_ms": NOW_MS, "questions": [],
         "text": frames.erase_text(DEVICE, subject.hex(), NOW_MS)},
        {"name": "erasure request with questions", "device": DEVICE, "subject": subject, "before_ms": 0,
         "questions": names, "text": frames.erase_text(DEVICE, subject.hex(), 0, names)},
        {"name": "enrolment", "token": "T0ken", "csr": CSR, "signing": frames.signing_public(DEVICE_SIGNING),
         "hpke": frames.hpke_public(DEVICE_HPKE), "hardware": "serial-1", "proved": frames.enrolment_text(
             "T0ken", CSR, frames.signing_public(DEVICE_SIGNING), frames.hpke_public(DEVICE_HPKE), "serial-1")},
        {"name": "renewal", "device": DEVICE, "csr": CSR, "renewed": frames.renewal_text(DEVICE, CSR)},
        {"name": "retirement", "device": DEVICE, "ledger": mark.hex(),
         "retired": frames.retirement_text(DEVICE, mark.hex())},
        {"name": "subject mark", "device": DEVICE, "subject": subject, "mark": mark},
        {"name": "tombstone", "body": body, "signature": frames.sign_statement(body, HUB_SIGNING)},
    ]  # fmt: skip


FORMS: tuple[dict[str, Any], ...] = (
    {"fields": {}, "transforms": {}, "rule": "", "policy": "", "hub": "", "region": "", "accounts": []},
    {"fields": {"seqs": "P1", "epoch": "P1"}, "transforms": {}, "rule": "protocol", "policy": "", "hub": "hub-1",
     "region": "local", "accounts": []},
    {"fields": {"features": "P2", "answer": "P1"}, "transforms": {
        "features": [{"kind": "clip", "low": 0.0, "high": 15}, {"kind": "noise", "epsilon": 1e-6, "delta": 0.00012}],
        "answer": []}, "rule": "demo@1+shop@3", "policy": POLICY, "hub": "hub-1", "region": 'l\u00f6cal/"\\',
     "accounts": ["bytes", "privacy/\u00e4"]},
    {"fields": {"x": "P0"}, "transforms": {"x": [{"z": [1e16, 1e15, 0.00001, 9.5e-5, -1.5e-7, 1e300, -0.0], "a": 1}]},
     "rule": "r", "policy": "p", "hub": "h", "region": "r", "accounts": ["a"]},
)  # fmt: skip


def make_entries() -> list[dict[str, Any]]:
    """A chain with an entry of each kind."""
    entries: list[dict[str, Any]] = []
    before = ledger.genesis(EPOCH)
    for kind, number in ledger.KINDS.items():
        question = number <= 4
        entry = {
            "entry": number, "at_ms": NOW_MS + number, "seq": SEQ if question else 0, "kind": number,
            "size": 1000 * number, "charge": 2**40 + number if number == 1 else 0, "releases": 2 if number == 1 else 0,
            "form": ledger.form_hash(FORMS[2 if question else 1]), "digest": fixed_bytes(f"frame {number}"),
            "id": "0f" * 16 if question else "",
        }  # fmt: skip
        entries.append({"name": kind, "before": before, "entry": entry, "hash": ledger.entry_hash(before, entry)})
        before = ledger.entry_hash(before, entry)
    return entries


def make_leaves() -> list[dict[str, Any]]:
    """Leaves of the hub's log: heads of one device."""
    leaves = []
    for number in range(1, 8):
        head = {**HEAD, "entries": number, "hash": make_entries()[number - 1]["hash"], "at_ms": NOW_MS + number}
        signature = ledger.sign_head(head, DEVICE_SIGNING)
        leaf = {
            **{name: head[name] for name in ("device", "epoch", "entries", "at_ms")}, "head": head["hash"],
            "key": frames.signing_public(DEVICE_SIGNING), "signature": signature, "received_ms": NOW_MS + 100 + number,
            "epochs": 1,
        }  # fmt: skip
        data = ledger.leaf_bytes(leaf)
        leaves.append(
            {"name": f"head {number}", "text": ledger.head_text(head), "leaf": leaf, "encoded": data,
             "hash": ledger.leaf_hash(data)}
        )  # fmt: skip
    return leaves


def make_trees() -> list[dict[str, Any]]:
    """Roots of the first leaves, proofs of each leaf, and from each size to each, with signed checkpoints."""
    data = [leaf["encoded"] for leaf in make_leaves()]
    return [
        {"name": f"{size} leaves", "size": size, "root": ledger.root(data[:size]),
         "inclusion": [ledger.inclusion(index, data[:size]) for index in range(size)],
         "consistency": [ledger.consistency(first, data[:size]) for first in range(1, size + 1)],
         "checkpoint": ledger.checkpoint("hub-1", size, ledger.root(data[:size]), HUB_SIGNING)}
        for size in range(len(data) + 1)
    ]  # fmt: skip


def make_proof() -> bytes:
    """A proof file over the chain of `make_entries`, with one witness."""
    entries, forms, leaf = make_entries(), [FORMS[2], FORMS[1]], make_leaves()[6]
    numbers = {ledger.form_hash(form): number for number, form in enumerate(forms)}
    rows = [
        [*(entry[name] for name in ledger.ENTRY_FIELDS[:7]), numbers[entry["form"]], _b64(entry["digest"]), entry["id"]]
        for entry in (each["entry"] for each in entries[:7])
    ]
    tree, key = make_trees()[7], frames.signing_public(DEVICE_SIGNING)
    end = {
        "entry": 7, "at_ms": NOW_MS + 7, "hash": _b64(leaf["leaf"]["head"]),
        "signature": _b64(leaf["leaf"]["signature"]),
    }  # fmt: skip
    witness = {
        "entry": 7, "hub": "hub-1", "key": _b64(frames.signing_public(HUB_SIGNING)), "checkpoint": tree["checkpoint"],
        "index": 6, "received_ms": NOW_MS + 107, "epochs": 1,
        "inclusion": [_b64(each) for each in tree["inclusion"][6]],
    }  # fmt: skip
    claim = {"level": 2, "region": "", "since_ms": NOW_MS, "until_ms": NOW_MS + 7}
    file = {
        "skerry_proof": 1, "claim": claim, "device": DEVICE, "key": _b64(key), "epoch": f"{EPOCH:x}", "start": None,
        "end": end, "forms": forms, "entries": rows, "witnesses": [witness],
    }  # fmt: skip
    return json.dumps(file, indent=0, ensure_ascii=False).encode() + b"\n"


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def make_all() -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Every vector, by file and group."""
    forms = [
        {"name": f"form {number}", "form": form, "text": ledger.form_text(form), "hash": ledger.form_hash(form)}
        for number, form in enumerate(FORMS)
    ]
    return {
        "frames.json": {
            "keys": make_keys(),
            "signed": [make_signed(*note) for note in NOTES],
            "sealed": [make_sealed(*message) for message in SEALED],
            "bindings": make_bindings(),
            "topics": make_topics(),
            "statements": make_statements(),
            "words": [{"name": name, "words": list(words)} for name, words in WORDS.items()],
        },
        "ledger.json": {"forms": forms, "entries": make_entries(), "leaves": make_leaves(), "trees": make_trees()},
    }


def main() -> None:
    """Add the vectors that are missing."""
    for name, groups in make_all().items():
        path = FOLDER / name
        there = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        for group, made in groups.items():
            names = {vector["name"] for vector in there.setdefault(group, [])}
            added = [to_json(vector) for vector in made if vector["name"] not in names]
            there[group] += added
            print(f"{name}: {group}: {len(added)} added, {len(names)} were there")
        path.write_text(json.dumps(there, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        from_json(there)
    proof = FOLDER / "proof.json"
    if not proof.exists():
        proof.write_bytes(make_proof())


if __name__ == "__main__":
    main()

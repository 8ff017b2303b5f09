"""The egress ledger and the hub's log: chain, forms, heads, leaves, Merkle tree, checkpoints, proof files.

The tree is computed by the definitions of RFC 9162, section 2.1, over whole lists of leaves.
"""

import base64
import json
import re
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.second_implementation import msgpack
from tests.second_implementation.frames import verify

ENTRY_FIELDS = ("entry", "at_ms", "seq", "kind", "size", "charge", "releases", "form", "digest", "id")
FORM_FIELDS = ("fields", "transforms", "rule", "policy", "hub", "region", "accounts")
HEAD_FIELDS = ("device", "epoch", "entries", "at_ms", "hash")
LEAF_FIELDS = ("device", "key", "epoch", "entries", "at_ms", "head", "signature", "received_ms", "epochs")
KINDS = {
    "question": 1, "resealed": 2, "again": 3, "withheld": 4, "hello": 5, "ask": 6, "report": 7, "state": 8,
}  # fmt: skip
_BYTES = {"entry": 8, "at_ms": 8, "seq": 8, "kind": 1, "size": 4, "charge": 8, "releases": 4}
Proof = Sequence[bytes]


def genesis(epoch: int) -> bytes:
    return sha256(b"skerry-chain/1\0" + epoch.to_bytes(8, "big")).digest()


def entry_hash(before: bytes, entry: dict[str, Any]) -> bytes:
    facts = b"".join(entry[name].to_bytes(size, "big") for name, size in _BYTES.items())
    return sha256(before + facts + entry["form"] + entry["digest"] + entry["id"].encode()).digest()


def chain_hashes(epoch: int, entries: Sequence[dict[str, Any]]) -> list[bytes]:
    """The hash of each entry, from the first one of an epoch on."""
    hashes = [genesis(epoch)]
    for entry in entries:
        hashes.append(entry_hash(hashes[-1], entry))
    return hashes[1:]


def form_text(form: dict[str, Any]) -> str:
    """The JSON of a form: its own fields in their fixed order, the keys of maps inside sorted, no spaces."""
    return "{" + ",".join(f'"{name}":{_json(form[name])}' for name in FORM_FIELDS) + "}"


def _json(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{_json(key)}:{_json(value[key])}" for key in sorted(value)) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_json, value)) + "]"
    if isinstance(value, float):
        return _float_text(value)
    return json.dumps(value, ensure_ascii=False)


def _float_text(value: float) -> str:
    """Shortest digits that read back the same; a point from 0.00001 up to below 1e16, else an exponent without `+`."""
    if not value or 1e-5 <= abs(value) < 1e16:
        text = repr(value)
        if "e" in text:  # Python has an exponent below 0.0001
            digits, exponent = text.split("e")
            sign, whole = ("-", digits[1:]) if digits[0] == "-" else ("", digits)
            return f"{sign}0.{'0' * (-int(exponent) - 1)}{whole.replace('.', '')}"
        return text
    digits, exponent = repr(value).split("e")
    return f"{digits}e{int(exponent)}"


def form_hash(form: dict[str, Any]) -> bytes:
    return sha256(b"skerry-form/1\0" + form_text(form).encode()).digest()


def head_text(head: dict[str, Any]) -> bytes:
    return b"skerry-head/1\0" + msgpack.encode([head[name] for name in HEAD_FIELDS])


def sign_head(head: dict[str, Any], key: bytes) -> bytes:
    return Ed25519PrivateKey.from_private_bytes(key).sign(head_text(head))


def is_head_signed(head: dict[str, Any], signature: bytes, public: bytes) -> bool:
    return verify(public, signature, head_text(head))


def leaf_bytes(leaf: dict[str, Any]) -> bytes:
    return msgpack.encode([leaf[name] for name in LEAF_FIELDS])


# Merkle tree


def leaf_hash(data: bytes) -> bytes:
    return sha256(b"\0" + data).digest()


def _split(count: int) -> int:
    power = 1
    while power * 2 < count:
        power *= 2
    return power


def root(leaves: Sequence[bytes]) -> bytes:
    """MTH over leaves as bytes."""
    if not leaves:
        return sha256(b"").digest()
    if len(leaves) == 1:
        return leaf_hash(leaves[0])
    k = _split(len(leaves))
    return _node(root(leaves[:k]), root(leaves[k:]))


def _node(left: bytes, right: bytes) -> bytes:
    return sha256(b"\1" + left + right).digest()


def inclusion(index: int, leaves: Sequence[bytes]) -> list[bytes]:
    """PATH(index, leaves)."""
    if len(leaves) == 1:
        return []
    k = _split(len(leaves))
    if index < k:
        return [*inclusion(index, leaves[:k]), root(leaves[k:])]
    return [*inclusion(index - k, leaves[k:]), root(leaves[:k])]


def consistency(first: int, leaves: Sequence[bytes]) -> list[bytes]:
    """PROOF(first, leaves)."""
    return _subproof(first, leaves, whole=True)


def _subproof(first: int, leaves: Sequence[bytes], *, whole: bool) -> list[bytes]:
    if first == len(leaves):
        return [] if whole else [root(leaves)]
    k = _split(len(leaves))
    if first <= k:
        return [*_subproof(first, leaves[:k], whole=whole), root(leaves[k:])]
    return [*_subproof(first - k, leaves[k:], whole=False), root(leaves[:k])]


def root_of_inclusion(index: int, size: int, leaf: bytes, proof: Proof) -> bytes:
    """The root to which a proof leads from the hash of a leaf; ValueError if it is too long or too short."""
    if size == 1:
        if proof:
            raise ValueError("too long")
        return leaf
    if not proof:
        raise ValueError("too short")
    k, rest, last = _split(size), proof[:-1], proof[-1]
    if index < k:
        return _node(root_of_inclusion(index, k, leaf, rest), last)
    return _node(last, root_of_inclusion(index - k, size - k, leaf, rest))


def roots_of_consistency(first: int, second: int, known: bytes, proof: Proof) -> tuple[bytes, bytes]:
    """The roots of both sizes to which a proof leads. `known`: root of the older tree."""
    return _rebuild(first, second, known, list(proof), whole=True)


def _rebuild(first: int, second: int, known: bytes, proof: list[bytes], *, whole: bool) -> tuple[bytes, bytes]:
    if first == second:
        if whole and not proof:
            return known, known
        (only,) = proof
        return only, only
    k, last = _split(second), proof.pop()
    if first <= k:
        old, new = _rebuild(first, k, known, proof, whole=whole)
        return old, _node(new, last)
    old, new = _rebuild(first - k, second - k, known, proof, whole=False)
    return _node(last, old), _node(last, new)


# Checkpoints: C2SP tlog-checkpoint in a signed-note


def checkpoint(hub: str, size: int, root_hash: bytes, key: bytes) -> str:
    origin = f"skerry/{hub}"
    private = Ed25519PrivateKey.from_private_bytes(key)
    body = f"{origin}\n{size}\n{base64.b64encode(root_hash).decode()}\n"
    signed = _note_key(origin, private.public_key().public_bytes_raw()) + private.sign(body.encode())
    return f"{body}\n\N{EM DASH} {origin} {base64.b64encode(signed).decode()}\n"


def open_checkpoint(text: str, public: bytes) -> tuple[str, int, bytes]:
    """(origin, size, root) of a note that this key signed; ValueError if it did not."""
    body, _, lines = text.rpartition("\n\n")
    origin, size, root_text = re.fullmatch(r"(.+)\n(\d+)\n(.+)", body).groups()  # type: ignore[union-attr]
    for line in lines.splitlines():
        dash, name, encoded = line.split(" ")
        data = base64.b64decode(encoded)
        named = (dash, name, data[:4]) == ("\N{EM DASH}", origin, _note_key(origin, public))
        if named and verify(public, data[4:], body.encode() + b"\n"):
            return origin, int(size), base64.b64decode(root_text)
    raise ValueError("not signed by this key")


def _note_key(name: str, public: bytes) -> bytes:
    return sha256(name.encode() + b"\n\1" + public).digest()[:4]


# Proof files


def check_proof(data: bytes) -> tuple[str, bytes]:
    """Check a proof file's chain, heads and witnesses: (device, its key). ValueError for what does not hold."""
    file = json.loads(data)
    key, forms = base64.b64decode(file["key"]), [form_hash(form) for form in file["forms"]]
    epoch, start, end = int(file["epoch"], 16), file["start"], file["end"]
    last = base64.b64decode(start["hash"]) if start else genesis(epoch)
    for row in file["entries"]:
        entry = dict(zip(ENTRY_FIELDS, row, strict=True))
        entry |= {"form": forms[entry["form"]], "digest": base64.b64decode(entry["digest"])}
        last = entry_hash(last, entry)
    if last != base64.b64decode(end["hash"]):
        raise ValueError("chain")
    for signed in filter(None, (start, end)):
        if not is_head_signed(_head_of(file, signed), base64.b64decode(signed["signature"]), key):
            raise ValueError("head")
    for witness in file["witnesses"]:
        _check_witness(file, witness)
    return file["device"], key


def _head_of(file: dict[str, Any], signed: dict[str, Any]) -> dict[str, Any]:
    return {
        "device": file["device"], "epoch": int(file["epoch"], 16), "entries": signed["entry"],
        "at_ms": signed["at_ms"], "hash": base64.b64decode(signed["hash"]),
    }  # fmt: skip


def _check_witness(file: dict[str, Any], witness: dict[str, Any]) -> None:
    signed = next(each for each in (file["start"], file["end"]) if each and each["entry"] == witness["entry"])
    head = _head_of(file, signed)
    leaf = {
        **head, "key": base64.b64decode(file["key"]), "head": head["hash"],
        "signature": base64.b64decode(signed["signature"]), "received_ms": witness["received_ms"],
        "epochs": witness["epochs"],
    }  # fmt: skip
    _, size, root_hash = open_checkpoint(witness["checkpoint"], base64.b64decode(witness["key"]))
    path = [base64.b64decode(each) for each in witness["inclusion"]]
    if root_of_inclusion(witness["index"], size, leaf_hash(leaf_bytes(leaf)), path) != root_hash:
        raise ValueError("log")

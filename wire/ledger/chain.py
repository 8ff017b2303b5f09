"""Hash chain of the egress ledger: entries, their hashes and signed heads, for devices, hubs and auditors. Pure.

Rule: each entry's hash covers the hash before it and every fact of the entry (SHA-256). What left is named by its
form and the digest of its ciphertext, never by a value of a sample. A head is the device's signed statement of how
many entries its chain has.
"""

from collections.abc import Mapping
from enum import IntEnum
from hashlib import sha256
from struct import Struct, error
from typing import Any, NamedTuple

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from wire.ledger.merkle import HASH_BYTES

_CHAIN_TAG = b"skerry-chain/1\0"
_FORM_TAG = b"skerry-form/1\0"
_HEAD_TAG = b"skerry-head/1\0"
_ENTRY_FACTS = Struct(">QQQBIQI32s32s")
_form_encoder = msgspec.json.Encoder(order="deterministic")
_encoder = msgspec.msgpack.Encoder()


PROTOCOL_RULE = "protocol"  # the rule of notes: they carry nothing of a sample, no policy decides on them


class EntryKind(IntEnum):
    """What was handed to the link.

    `AGAIN`: the same bytes once more. `WITHHELD`: recorded before, and never sent.
    """

    QUESTION = 1
    RESEALED = 2
    AGAIN = 3
    WITHHELD = 4
    HELLO = 5
    ASK = 6
    REPORT = 7
    STATE = 8


class EntryForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What many entries have in common: which fields left, after which transforms, where to.

    `fields`: by schema name with their level ("P2"); `transforms`: by field.
    `rule`: the policy rules that let it leave, joined by "+"; `accounts`: the budgets it was charged to.
    """

    fields: dict[str, str]
    transforms: dict[str, Any]
    rule: str
    policy: str
    hub: str
    region: str
    accounts: tuple[str, ...] = ()


class LedgerEntry(NamedTuple):
    """One entry of the ledger.

    Times in ms of hub time, sizes in bytes; `form` and `digest` are SHA-256, `id` the answer's or "".
    `charge`: bytes charged to the budget; `releases`: noised fields.
    """

    entry: int
    at_ms: int
    seq: int
    kind: int
    size: int
    charge: int
    releases: int
    form: bytes
    digest: bytes
    id: str


class LedgerHead(NamedTuple):
    """Head of a device's ledger: number, time and hash of its last entry."""

    device: str
    epoch: int
    entries: int
    at_ms: int
    hash: bytes


class HeadLeaf(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A ledger head as a leaf of the hub's log: the device's statement and key, and when it was received.

    `epochs`: how many epochs of this device the log knows. Two heads of one device with the same `epochs` have no other
    ledger of that device between them.
    """

    device: str
    key: bytes
    epoch: int
    entries: int
    at_ms: int
    head: bytes
    signature: bytes
    received_ms: int
    epochs: int

    @property
    def signed_head(self) -> LedgerHead:
        """The head that the device signed."""
        return LedgerHead(self.device, self.epoch, self.entries, self.at_ms, self.head)

    def encode_leaf(self) -> bytes:
        """Bytes of the leaf in the hub's Merkle tree (positional msgpack)."""
        return _encoder.encode(self)


def genesis_hash(epoch: int) -> bytes:
    """Hash before the first entry of an epoch's chain."""
    return sha256(_CHAIN_TAG + epoch.to_bytes(8, "big")).digest()


def chain_hash(before: bytes, link: LedgerEntry) -> bytes:
    """Hash of the entry that follows one of hash `before`.

    Raises ValueError for a number out of range or a hash of the wrong length: no ledger holds such an entry.
    """
    if len(link.form) != HASH_BYTES or len(link.digest) != HASH_BYTES:  # packing would cut or fill them
        raise ValueError(f"entry {link.entry}: a hash has {HASH_BYTES} bytes")
    try:
        return sha256(before + _ENTRY_FACTS.pack(*link[:9]) + link.id.encode()).digest()
    except error as misfit:
        raise ValueError(f"entry {link.entry}: {misfit}") from None


def hash_form(form: EntryForm) -> bytes:
    """SHA-256 of a form, the key under which it is stored once."""
    return sha256(_FORM_TAG + _form_encoder.encode(form)).digest()


def encode_form_json(value: Mapping[str, Any]) -> str:
    """Canonical JSON text of a form's `fields` or `transforms`."""
    return _form_encoder.encode(value).decode()


def encode_head_text(head: LedgerHead) -> bytes:
    """Bytes of a head that the device signs."""
    return _HEAD_TAG + _encoder.encode(tuple(head))


def verify_head(head: LedgerHead, signature: bytes, key: bytes) -> bool:
    """Whether the holder of the raw Ed25519 public key `key` signed this head. False for an invalid key, too."""
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, encode_head_text(head))
    except (InvalidSignature, ValueError):
        return False
    return True

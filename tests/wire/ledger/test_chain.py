"""Hash chain of ledger entries: every fact is hashed, and no two entries collide."""

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from wire.ledger.chain import (
    EntryForm,
    HeadLeaf,
    LedgerEntry,
    LedgerHead,
    chain_hash,
    encode_head_text,
    genesis_hash,
    hash_form,
    verify_head,
)

LINK = LedgerEntry(1, 1000, 7, 1, 408, 408, 0, b"f" * 32, b"d" * 32, "ab")
FORM = EntryForm({"features": "P2"}, {"features": [{"kind": "clip"}]}, "clinic@3", "00", "hub-1", "eu")


@pytest.mark.parametrize("field", LedgerEntry._fields)
def test_every_fact_of_an_entry_changes_its_hash(field):
    value = getattr(LINK, field)
    other = value + 1 if isinstance(value, int) else value + "0" if isinstance(value, str) else b"x" + value[1:]
    changed = LedgerEntry._make({**LINK._asdict(), field: other}.values())
    assert chain_hash(genesis_hash(1), changed) != chain_hash(genesis_hash(1), LINK)


def test_an_entry_hangs_on_what_was_before_it():
    assert chain_hash(genesis_hash(1), LINK) != chain_hash(genesis_hash(2), LINK)


@pytest.mark.parametrize(
    "change", [{"digest": b"d" * 31}, {"form": b"f" * 33}, {"size": -1}, {"size": 2**32}, {"entry": 2**64}]
)
def test_what_no_ledger_holds_has_no_hash(change):
    with pytest.raises(ValueError, match="entry"):
        chain_hash(genesis_hash(1), LINK._replace(**change))


@pytest.mark.parametrize(
    "change",
    [
        {"fields": {"features": "P1"}},
        {"transforms": {}},
        {"rule": "x"},
        {"policy": "x"},
        {"hub": "x"},
        {"region": "us"},
    ],
)
def test_every_word_of_a_form_changes_its_name(change):
    import msgspec  # noqa: PLC0415

    assert hash_form(msgspec.structs.replace(FORM, **change)) != hash_form(FORM)


def test_a_forms_name_does_not_hang_on_the_order_of_its_fields():
    one = EntryForm({"a": "P1", "b": "P2"}, {}, "", "", "", "")
    two = EntryForm({"b": "P2", "a": "P1"}, {}, "", "", "", "")
    assert hash_form(one) == hash_form(two)


def test_a_head_is_signed_for_one_device_epoch_entry_and_hash():
    key = Ed25519PrivateKey.generate()
    public = key.public_key().public_bytes_raw()
    head = LedgerHead("demo--a", 5, 9, 1000, b"h" * 32)
    signature = key.sign(encode_head_text(head))
    assert verify_head(head, signature, public)
    for change in ({"device": "demo--b"}, {"epoch": 6}, {"entries": 10}, {"at_ms": 1001}, {"hash": b"i" * 32}):
        assert not verify_head(head._replace(**change), signature, public)
    assert not verify_head(head, signature, b"short")
    leaf = HeadLeaf(head.device, public, head.epoch, head.entries, head.at_ms, head.hash, signature, 1, 1)
    assert leaf.signed_head == head

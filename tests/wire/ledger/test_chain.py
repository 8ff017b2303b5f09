"""Hash chain of ledger entries: every fact is hashed, and no two entries collide."""

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from wire.ledger.chain import Form, Head, Leaf, Link, follow, form_id, genesis, head_text, is_signed

LINK = Link(1, 1000, 7, 1, 408, 408, 0, b"f" * 32, b"d" * 32, "ab")
FORM = Form({"features": "P2"}, {"features": [{"kind": "clip"}]}, "clinic@3", "00", "hub-1", "eu")


@pytest.mark.parametrize("field", Link._fields)
def test_every_fact_of_an_entry_changes_its_hash(field):
    value = getattr(LINK, field)
    other = value + 1 if isinstance(value, int) else value + "0" if isinstance(value, str) else b"x" + value[1:]
    changed = Link._make({**LINK._asdict(), field: other}.values())
    assert follow(genesis(1), changed) != follow(genesis(1), LINK)


def test_an_entry_hangs_on_what_was_before_it():
    assert follow(genesis(1), LINK) != follow(genesis(2), LINK)


@pytest.mark.parametrize(
    "change", [{"digest": b"d" * 31}, {"form": b"f" * 33}, {"size": -1}, {"size": 2**32}, {"entry": 2**64}]
)
def test_what_no_ledger_holds_has_no_hash(change):
    with pytest.raises(ValueError, match="entry"):
        follow(genesis(1), LINK._replace(**change))


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

    assert form_id(msgspec.structs.replace(FORM, **change)) != form_id(FORM)


def test_a_forms_name_does_not_hang_on_the_order_of_its_fields():
    one = Form({"a": "P1", "b": "P2"}, {}, "", "", "", "")
    two = Form({"b": "P2", "a": "P1"}, {}, "", "", "", "")
    assert form_id(one) == form_id(two)


def test_a_head_is_signed_for_one_device_epoch_entry_and_hash():
    key = Ed25519PrivateKey.generate()
    public = key.public_key().public_bytes_raw()
    head = Head("demo--a", 5, 9, 1000, b"h" * 32)
    signature = key.sign(head_text(head))
    assert is_signed(head, signature, public)
    for change in ({"device": "demo--b"}, {"epoch": 6}, {"entries": 10}, {"at_ms": 1001}, {"hash": b"i" * 32}):
        assert not is_signed(head._replace(**change), signature, public)
    assert not is_signed(head, signature, b"short")
    leaf = Leaf(head.device, public, head.epoch, head.entries, head.at_ms, head.hash, signature, 1, 1)
    assert leaf.said == head

"""Frozen evidence: ledger entries, forms, heads, leaves, trees and checkpoints, which auditors keep for years.

The bytes are in `tests/vectors`; `tests/second_implementation` stands for an auditor's own program.
"""

from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.second_implementation import ledger as stranger
from tests.second_implementation import vectors
from tests.second_implementation.frames import signing_public
from tests.second_implementation.vectors import DEVICE_SIGNING, EPOCH, HUB_SIGNING
from wire.ledger import chain, checkpoint, merkle
from wire.ledger.chain import EntryForm, EntryKind, HeadLeaf, LedgerEntry, LedgerHead
from wire.ledger.merkle import TreeHead

FROZEN = vectors.load("ledger.json")
DEVICE_PUBLIC, HUB_PUBLIC = signing_public(DEVICE_SIGNING), signing_public(HUB_SIGNING)
EXPLAIN = "add a vector with it: tests/vectors/README.md"


def each(group: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("vector", FROZEN[group], ids=[one["name"] for one in FROZEN[group]])


def form_of(fields: dict[str, Any]) -> EntryForm:
    return EntryForm(**{**fields, "accounts": tuple(fields["accounts"])})


def head_of(leaf: dict[str, Any]) -> LedgerHead:
    return LedgerHead(leaf["device"], leaf["epoch"], leaf["entries"], leaf["at_ms"], leaf["head"])


def read_tree(leaves: int) -> Any:
    """A node reader over the frozen leaves."""

    def read_node(level: int, place: int) -> bytes:
        if level == 0:
            assert place < leaves
            return bytes(FROZEN["leaves"][place]["hash"])
        return merkle.hash_node(read_node(level - 1, 2 * place), read_node(level - 1, 2 * place + 1))

    return read_node


# The product


@each("forms")
def test_a_form_has_its_frozen_text_and_name(vector: dict[str, Any]) -> None:
    form = form_of(vector["form"])
    assert chain.hash_form(form) == vector["hash"]
    for part in ("fields", "transforms"):
        assert f'"{part}":{chain.encode_form_json(vector["form"][part])}' in vector["text"]


@each("entries")
def test_an_entry_has_its_frozen_hash(vector: dict[str, Any]) -> None:
    assert chain.chain_hash(vector["before"], LedgerEntry(**vector["entry"])) == vector["hash"]


def test_a_chain_begins_with_the_frozen_hash_of_its_epoch() -> None:
    assert chain.genesis_hash(EPOCH) == FROZEN["entries"][0]["before"]


@each("leaves")
def test_a_head_and_its_leaf_are_the_frozen_bytes(vector: dict[str, Any]) -> None:
    head, fields = head_of(vector["leaf"]), vector["leaf"]
    assert chain.encode_head_text(head) == vector["text"]
    assert chain.verify_head(head, fields["signature"], DEVICE_PUBLIC)
    leaf = HeadLeaf(**fields)
    assert leaf.signed_head == head
    assert leaf.encode_leaf() == vector["encoded"]
    assert merkle.hash_leaf(vector["encoded"]) == vector["hash"]


@each("trees")
def test_a_tree_has_its_frozen_root_and_proofs(vector: dict[str, Any]) -> None:
    size, tree, read_node = vector["size"], TreeHead(vector["size"], vector["root"]), read_tree(vector["size"])
    assert merkle.compute_root(size, read_node) == vector["root"]
    for index, path in enumerate(vector["inclusion"]):
        assert list(merkle.build_inclusion_proof(index, size, read_node)) == path
        assert merkle.verify_inclusion(tree, index, FROZEN["leaves"][index]["hash"], path)
    for first, path in enumerate(vector["consistency"], 1):
        assert list(merkle.build_consistency_proof(first, size, read_node)) == path
        assert merkle.verify_consistency(TreeHead(first, FROZEN["trees"][first]["root"]), tree, path)


@each("trees")
def test_a_checkpoint_is_the_frozen_text(vector: dict[str, Any]) -> None:
    tree, key = TreeHead(vector["size"], vector["root"]), Ed25519PrivateKey.from_private_bytes(HUB_SIGNING)
    assert checkpoint.sign_checkpoint(checkpoint.build_origin("hub-1"), tree, key) == vector["checkpoint"]
    assert checkpoint.open_checkpoint(vector["checkpoint"], HUB_PUBLIC) == ("skerry/hub-1", tree)


def test_a_new_kind_fact_or_field_of_the_ledger_needs_a_vector() -> None:
    assert {kind.name.lower(): kind.value for kind in EntryKind} == stranger.KINDS, EXPLAIN
    assert {vector["name"] for vector in FROZEN["entries"]} == set(stranger.KINDS), EXPLAIN
    assert LedgerEntry._fields == stranger.ENTRY_FIELDS, EXPLAIN
    assert EntryForm.__struct_fields__ == stranger.FORM_FIELDS, EXPLAIN
    assert LedgerHead._fields == stranger.HEAD_FIELDS, EXPLAIN
    assert HeadLeaf.__struct_fields__ == stranger.LEAF_FIELDS, EXPLAIN


# The second implementation, and what one side makes and the other reads


def test_the_second_implementation_reads_the_frozen_trees_and_proofs() -> None:
    leaves = [vector["encoded"] for vector in FROZEN["leaves"]]
    for vector in FROZEN["trees"]:
        size, root = vector["size"], vector["root"]
        assert stranger.root(leaves[:size]) == root
        assert stranger.open_checkpoint(vector["checkpoint"], HUB_PUBLIC) == ("skerry/hub-1", size, root)
        for index, path in enumerate(vector["inclusion"]):
            assert stranger.root_of_inclusion(index, size, stranger.leaf_hash(leaves[index]), path) == root
        for first, path in enumerate(vector["consistency"], 1):
            known = FROZEN["trees"][first]["root"]
            assert stranger.roots_of_consistency(first, size, known, path) == (known, root)


NUMBERS = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
TRANSFORMS = st.dictionaries(
    st.text(max_size=6),
    st.lists(
        st.dictionaries(st.text(max_size=6), st.text(max_size=6) | NUMBERS | st.booleans() | st.none()), max_size=2
    ),
    max_size=3,
)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.text(max_size=6), st.sampled_from(["P0", "P4"]), max_size=3), TRANSFORMS, st.text(max_size=8))
def test_both_give_any_form_the_same_name(fields: dict[str, str], transforms: dict[str, Any], word: str) -> None:
    form = EntryForm(fields, transforms, rule=word, policy="p", hub="h", region=word, accounts=(word, "bytes"))
    found = {name: getattr(form, name) for name in EntryForm.__struct_fields__}
    assert stranger.form_hash(found) == chain.hash_form(form)


U64, U32, HASH = st.integers(0, 2**63 - 1), st.integers(0, 2**32 - 1), st.binary(min_size=32, max_size=32)
ENTRIES = st.builds(LedgerEntry, U64, U64, U64, st.integers(1, 8), U32, U64, U32, HASH, HASH, st.text(max_size=8))


@settings(max_examples=100, deadline=None)
@given(U64, st.lists(ENTRIES, max_size=4))
def test_both_chain_any_entries_to_the_same_hashes(epoch: int, entries: list[LedgerEntry]) -> None:
    hashes, last = [], chain.genesis_hash(epoch)
    for entry in entries:
        last = chain.chain_hash(last, entry)
        hashes.append(last)
    assert stranger.chain_hashes(epoch, [entry._asdict() for entry in entries]) == hashes


@settings(max_examples=50, deadline=None)
@given(st.builds(LedgerHead, st.text(max_size=64), U64, U64, U64, HASH), U64, U64)
def test_each_verifies_the_heads_and_leaves_of_the_other(head: LedgerHead, received_ms: int, epochs: int) -> None:
    signature = Ed25519PrivateKey.from_private_bytes(DEVICE_SIGNING).sign(chain.encode_head_text(head))
    assert stranger.is_head_signed(head._asdict(), signature, DEVICE_PUBLIC)
    assert chain.verify_head(head, stranger.sign_head(head._asdict(), DEVICE_SIGNING), DEVICE_PUBLIC)
    leaf = HeadLeaf(
        head.device, DEVICE_PUBLIC, head.epoch, head.entries, head.at_ms, head.hash, signature, received_ms, epochs
    )
    fields = {name: getattr(leaf, name) for name in HeadLeaf.__struct_fields__}
    assert stranger.leaf_bytes(fields) == leaf.encode_leaf()

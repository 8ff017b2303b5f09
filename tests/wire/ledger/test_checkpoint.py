"""Signed checkpoints: opened by the key that signed them, refused for anything else."""

import base64

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from wire.errors import Fault, RemoteError
from wire.ledger.checkpoint import build_origin, open_checkpoint, sign_checkpoint
from wire.ledger.merkle import EMPTY_ROOT, TreeHead, hash_leaf

KEY = Ed25519PrivateKey.from_private_bytes(b"c" * 32)
PUBLIC = KEY.public_key().public_bytes_raw()
TREE = TreeHead(7, hash_leaf(b"x"))
TEXT = sign_checkpoint(build_origin("hub-1"), TREE, KEY)


def test_a_checkpoint_is_the_form_that_witnesses_read():
    origin, size, root, gap, signature, rest = TEXT.split("\n")
    assert (origin, size, gap, rest) == ("skerry/hub-1", "7", "", "")
    assert base64.b64decode(root) == TREE.root
    dash, name, data = signature.split(" ")
    assert (dash, name, len(base64.b64decode(data))) == ("—", "skerry/hub-1", 4 + 64)


def test_what_was_signed_is_read_back():
    seen = open_checkpoint(TEXT, PUBLIC)
    assert (seen.origin, seen.tree) == ("skerry/hub-1", TREE)
    assert open_checkpoint(sign_checkpoint("skerry/h", TreeHead(0, EMPTY_ROOT), KEY), PUBLIC).tree == TreeHead(
        0, EMPTY_ROOT
    )


def test_a_witness_may_sign_the_same_text_beside_the_hub():
    other = sign_checkpoint("skerry/hub-1", TREE, Ed25519PrivateKey.generate()).splitlines()[-1]
    assert open_checkpoint(TEXT + other + "\n", PUBLIC).tree == TREE
    assert open_checkpoint(TEXT + "— example.org/witness AAAA\n", PUBLIC).tree == TREE


@pytest.mark.parametrize(
    "text",
    ["", "\n\n", TEXT[:-10], TEXT.replace("\n7\n", "\n07\n"), TEXT.replace("skerry/hub-1", "skerry/hub 1"), TEXT * 50],
)
def test_what_is_no_checkpoint_is_refused(text):
    with pytest.raises(RemoteError):
        open_checkpoint(text, PUBLIC)


@pytest.mark.parametrize(("before", "after"), [("\n7\n", "\n8\n"), ("skerry/hub-1\n7", "skerry/hub-2\n7")])
def test_a_changed_size_or_name_is_not_signed(before, after):
    with pytest.raises(RemoteError) as refused:
        open_checkpoint(TEXT.replace(before, after, 1), PUBLIC)
    assert refused.value.fault is Fault.SIGNATURE


def test_another_hubs_key_signs_nothing_here():
    with pytest.raises(RemoteError):
        open_checkpoint(TEXT, Ed25519PrivateKey.generate().public_key().public_bytes_raw())
    with pytest.raises(RemoteError):
        open_checkpoint(TEXT, b"")


@given(st.text(max_size=300), st.integers(0, 200))
def test_no_text_makes_the_reader_fail_otherwise(noise, at):
    with pytest.raises(RemoteError):
        open_checkpoint(noise, PUBLIC)
    damaged = TEXT[:at] + noise + TEXT[at:]
    if damaged != TEXT:
        try:
            assert open_checkpoint(damaged, PUBLIC).tree == TREE
        except RemoteError:
            return


def test_a_checkpoint_may_have_4096_characters_and_no_more():
    witness = "— example.org/witness " + "A" * (4096 - len(TEXT) - len("— example.org/witness \n"))
    assert open_checkpoint(f"{TEXT}{witness}\n", PUBLIC).tree == TREE
    with pytest.raises(RemoteError) as refused:
        open_checkpoint(f"{TEXT}{witness}A\n", PUBLIC)
    assert refused.value.fault is Fault.MALFORMED


@pytest.mark.parametrize("stray", ["!", " ", "-"])
def test_a_signature_with_a_character_that_is_no_base64_is_refused(stray):
    damaged = TEXT[:-10] + stray + TEXT[-10:]
    with pytest.raises(RemoteError) as refused:
        open_checkpoint(damaged, PUBLIC)
    assert refused.value.fault is Fault.SIGNATURE

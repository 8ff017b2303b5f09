"""Merkle tree against the published vectors of RFC 6962/9162, and against invalid proofs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire.ledger import merkle
from wire.ledger.merkle import EMPTY_ROOT, TreeHead, hash_leaf, hash_node, verify_consistency, verify_inclusion

# The eight leaves, roots and proofs of the reference implementations (certificate-transparency, transparency-dev).
LEAVES = ("", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f")
ROOTS = (
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
)
A = "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7"
B = "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e"
C = "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4"
D = "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b"
E = "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0"
F = "0ebc5d3437fbe2db158b9f126a1d118e308181031d0a949f8dededebc558ef6a"
INCLUSION = {
    (0, 1): (),
    (0, 8): (A, B, C),
    (5, 8): (D, E, ROOTS[3]),
    (2, 3): (ROOTS[1],),
    (1, 5): (ROOTS[0], B, D),
}
CONSISTENCY = {(1, 1): (), (1, 8): (A, B, C), (6, 8): (F, E, ROOTS[3]), (2, 5): (B, D)}


class Grown:
    """A tree of any leaves, kept as a hub keeps it."""

    def __init__(self, leaves: list[bytes]) -> None:
        self.nodes: dict[tuple[int, int], bytes] = {}
        for place, leaf in enumerate(leaves):
            for level, index, found in merkle.append_leaf(place, hash_leaf(leaf), self.node):
                self.nodes[level, index] = found

    def node(self, level: int, index: int) -> bytes:
        return self.nodes[level, index]

    def tree(self, size: int) -> TreeHead:
        return TreeHead(size, merkle.compute_root(size, self.node))


VECTORS = Grown([bytes.fromhex(leaf) for leaf in LEAVES])


def raw(*texts: str) -> tuple[bytes, ...]:
    return tuple(bytes.fromhex(text) for text in texts)


def test_roots_of_the_published_vectors():
    assert [VECTORS.tree(size + 1).root.hex() for size in range(8)] == list(ROOTS)
    assert VECTORS.tree(0).root == EMPTY_ROOT


@pytest.mark.parametrize(("place", "proof"), INCLUSION.items())
def test_inclusion_proofs_of_the_published_vectors(place, proof):
    index, size = place
    assert merkle.build_inclusion_proof(index, size, VECTORS.node) == raw(*proof)
    assert verify_inclusion(VECTORS.tree(size), index, hash_leaf(bytes.fromhex(LEAVES[index])), raw(*proof))


@pytest.mark.parametrize(("sizes", "proof"), CONSISTENCY.items())
def test_consistency_proofs_of_the_published_vectors(sizes, proof):
    first, second = sizes
    assert merkle.build_consistency_proof(first, second, VECTORS.node) == raw(*proof)
    assert verify_consistency(VECTORS.tree(first), VECTORS.tree(second), raw(*proof))


MANY = Grown([b"%d" % each for each in range(81)])


@given(st.integers(1, 80).flatmap(lambda size: st.tuples(st.just(size), st.integers(0, size - 1))))
def test_every_proof_holds_for_its_own_leaf_and_sizes_alone(place):
    size, index = place
    tree, leaf = MANY.tree(size), MANY.node(0, index)
    proof = merkle.build_inclusion_proof(index, size, MANY.node)
    assert verify_inclusion(tree, index, leaf, proof)
    assert not verify_inclusion(tree, index, MANY.node(0, 80), proof)
    assert not verify_inclusion(MANY.tree(81), index, leaf, proof)
    assert size == 1 or not verify_inclusion(tree, (index + 1) % size, leaf, proof)
    for wrong in (proof[1:], (*proof, leaf), tuple(each[:31] for each in proof)):
        assert wrong == proof or not verify_inclusion(tree, index, leaf, wrong)
    grown = merkle.build_consistency_proof(index + 1, size, MANY.node)
    assert verify_consistency(MANY.tree(index + 1), tree, grown)
    assert not verify_consistency(MANY.tree(index + 1), MANY.tree(81), grown)


@pytest.mark.parametrize(
    ("index", "size"), [(8, 8), (-1, 8), (0, 0), (2**70, 8)], ids=["behind", "negative", "empty", "huge"]
)
def test_wrong_size_is_refused_for_inclusion(index, size):
    leaf = hash_leaf(b"")
    assert not verify_inclusion(TreeHead(size, VECTORS.tree(8).root), index, leaf, raw(A, B, C))
    with pytest.raises(ValueError, match="no leaf"):
        merkle.build_inclusion_proof(index, size, VECTORS.node)


@pytest.mark.parametrize("sizes", [(0, 8), (8, 6), (9, 8), (-1, 8)])
def test_wrong_size_is_refused_for_consistency(sizes):
    first, second = sizes
    root = VECTORS.tree(8).root
    assert not verify_consistency(TreeHead(first, root), TreeHead(second, root), raw(A, B, C))
    assert not verify_consistency(TreeHead(first, root), TreeHead(second, root), ())


def test_empty_tree_proves_nothing():
    """From no heads every log follows, so a proof from there says nothing and is refused."""
    assert not verify_consistency(TreeHead(0, EMPTY_ROOT), VECTORS.tree(8), ())
    assert not verify_consistency(TreeHead(0, EMPTY_ROOT), TreeHead(0, EMPTY_ROOT), ())
    assert not verify_inclusion(TreeHead(0, EMPTY_ROOT), 0, EMPTY_ROOT, ())


def test_second_preimage_leaf_is_refused():
    """A node's two children shown as the data of a leaf: under another first byte they have another hash."""
    left, right = VECTORS.node(1, 0), VECTORS.node(1, 1)
    assert hash_node(left, right) == VECTORS.tree(4).root
    assert hash_leaf(left + right) != VECTORS.tree(4).root
    assert not verify_inclusion(VECTORS.tree(4), 0, hash_leaf(left + right), ())
    assert not verify_inclusion(TreeHead(2, VECTORS.tree(4).root), 0, hash_leaf(b"\1" + left), (right,))


def test_two_equal_sizes_need_equal_roots_and_no_proof():
    tree = VECTORS.tree(7)
    assert verify_consistency(tree, tree, ())
    assert not verify_consistency(tree, tree, raw(A))
    assert not verify_consistency(tree, TreeHead(7, VECTORS.tree(8).root), ())


def test_leaves_are_stored_with_every_subtree_that_they_complete():
    nodes: dict[tuple[int, int], bytes] = {}
    stored = []

    def read(level: int, index: int) -> bytes:
        return nodes[level, index]

    for place in range(8):
        made = merkle.append_leaf(place, hash_leaf(b"%d" % place), read)
        nodes |= {(each.level, each.place): each.hash for each in made}
        stored.append([(each.level, each.place) for each in made])
    assert stored == [
        [(0, 0)], [(0, 1), (1, 0)], [(0, 2)], [(0, 3), (1, 1), (2, 0)],
        [(0, 4)], [(0, 5), (1, 2)], [(0, 6)], [(0, 7), (1, 3), (2, 1), (3, 0)],
    ]  # fmt: skip
    assert nodes[1, 0] == hash_node(nodes[0, 0], nodes[0, 1])


def test_a_proof_of_values_that_are_no_hashes_is_refused_whatever_they_equal():
    tree, leaf = VECTORS.tree(8), hash_leaf(bytes.fromhex(LEAVES[0]))
    proof = raw(A, B, C)
    assert verify_inclusion(tree, 0, leaf, proof)
    for other in (bytearray(proof[0]), proof[0][:31], proof[0] + b"\0", proof[0].hex()[:32]):
        assert not verify_inclusion(tree, 0, leaf, (other, *proof[1:]))  # type: ignore[arg-type]
    assert not verify_inclusion(tree, 0, bytearray(leaf), proof)  # type: ignore[arg-type]
    assert not verify_inclusion(TreeHead(8, bytearray(tree.root)), 0, leaf, proof)  # type: ignore[arg-type]


def test_an_index_is_from_nothing_to_below_the_size():
    for index, size in ((-1, 8), (8, 8), (0, 0)):
        with pytest.raises(ValueError, match="no leaf"):
            merkle.build_inclusion_proof(index, size, VECTORS.node)
        assert not verify_inclusion(TreeHead(size, EMPTY_ROOT), index, hash_leaf(b""), ())
    for first, second in ((0, 8), (5, 4), (-1, 4)):
        with pytest.raises(ValueError, match="no proof"):
            merkle.build_consistency_proof(first, second, VECTORS.node)
        assert not verify_consistency(TreeHead(first, EMPTY_ROOT), TreeHead(second, EMPTY_ROOT), ())


def test_two_equal_trees_whose_root_is_no_hash_prove_nothing():
    for root in (b"", b"x" * 31, b"x" * 33):
        assert not verify_consistency(TreeHead(3, root), TreeHead(3, root), ())


def test_a_tree_that_is_not_complete_proves_nothing_without_a_proof():
    assert not verify_consistency(MANY.tree(3), MANY.tree(5), ())
    assert not verify_consistency(MANY.tree(4), MANY.tree(5), ())

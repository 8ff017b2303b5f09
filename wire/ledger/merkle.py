"""Merkle tree of RFC 9162 (section 2.1, SHA-256): roots, inclusion and consistency proofs, made and verified. Pure.

Rule: a leaf and a node are hashed under different first bytes, so no node can be shown as a leaf (second preimage). A
proof that is not exactly right in number, length and order of its hashes is refused; nothing of it is interpreted.

Where the nodes are stored is the caller's business: functions that need them take a `NodeReader`, which is called
with (level, index).
"""

from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import NamedTuple

HASH_BYTES = 32
EMPTY_ROOT = sha256(b"").digest()  # the root of a tree without leaves
_LEAF, _NODE = b"\0", b"\1"

# The root of the complete subtree of 2**level leaves that begins at leaf index * 2**level.
NodeReader = Callable[[int, int], bytes]
MerkleProof = Sequence[bytes]


class NewSubtree(NamedTuple):
    """A complete subtree that came into being when a leaf was appended: what the caller stores."""

    level: int
    place: int
    hash: bytes


class TreeHead(NamedTuple):
    """Size (number of leaves) and root hash of a tree at one moment; RFC 9162 calls it a tree head."""

    size: int
    root: bytes


def hash_leaf(data: bytes) -> bytes:
    """Hash of a leaf: SHA-256(0x00 | data)."""
    return sha256(_LEAF + data).digest()


def hash_node(left: bytes, right: bytes) -> bytes:
    """Hash of an inner node: SHA-256(0x01 | left | right)."""
    return sha256(_NODE + left + right).digest()


def append_leaf(size: int, leaf: bytes, node: NodeReader) -> list[NewSubtree]:
    """Append a leaf of hash `leaf` to a tree of `size` leaves; returns the nodes to store, the leaf itself first.

    `node` must know every complete subtree of the first `size` leaves.
    """
    made = [NewSubtree(0, size, leaf)]
    while made[-1].place & 1:
        level, index, right = made[-1]
        made.append(NewSubtree(level + 1, index >> 1, hash_node(node(level, index - 1), right)))
    return made


def compute_root(size: int, node: NodeReader) -> bytes:
    """Root hash of the first `size` leaves; SHA-256 of nothing for an empty tree."""
    return _subtree_root(0, size, node) if size else EMPTY_ROOT


def build_inclusion_proof(index: int, size: int, node: NodeReader) -> tuple[bytes, ...]:
    """Inclusion proof PATH(index, D[size]) of RFC 9162, 2.1.3.1: sibling hashes from the leaf up.

    Raises ValueError if there is no such leaf.
    """
    if not 0 <= index < size:
        raise ValueError(f"no leaf {index} in a tree of {size}")
    path: list[bytes] = []
    start, stop = 0, size
    while stop - start > 1:
        middle = start + _split_point(stop - start)
        if index < middle:
            path.append(_subtree_root(middle, stop, node))
            stop = middle
        else:
            path.append(_subtree_root(start, middle, node))
            start = middle
    return tuple(reversed(path))


def build_consistency_proof(first: int, second: int, node: NodeReader) -> tuple[bytes, ...]:
    """Consistency proof PROOF(first, D[second]) of RFC 9162, 2.1.4.1.

    Raises ValueError unless 0 < first <= second.
    """
    if not 0 < first <= second:
        raise ValueError(f"no proof from {first} to {second} leaves")
    path: list[bytes] = []
    start, stop, whole = 0, second, True
    while first != stop:
        middle = start + _split_point(stop - start)
        if first <= middle:
            path.append(_subtree_root(middle, stop, node))
            stop = middle
        else:
            path.append(_subtree_root(start, middle, node))
            start, whole = middle, False
    if not whole:
        path.append(_subtree_root(start, stop, node))
    return tuple(reversed(path))


def verify_inclusion(tree: TreeHead, index: int, leaf: bytes, proof: MerkleProof) -> bool:
    """Verify an inclusion proof: whether the leaf of hash `leaf` is at `index` of the tree (RFC 9162, 2.1.3.2)."""
    if not 0 <= index < tree.size or not _are_hashes(leaf, tree.root, *proof):
        return False
    position, last, found = index, tree.size - 1, leaf
    for each in proof:
        if last == 0:
            return False
        if position & 1 or position == last:
            found = hash_node(each, found)
            position, last = _skip_levels(position, last)
        else:
            found = hash_node(found, each)
        position, last = position >> 1, last >> 1
    return last == 0 and found == tree.root


def verify_consistency(before: TreeHead, after: TreeHead, proof: MerkleProof) -> bool:
    """Verify a consistency proof: whether `after` is `before` with leaves appended (RFC 9162, 2.1.4.2).

    From an empty tree nothing can be proved, so `before` must have a leaf.
    """
    if not 0 < before.size <= after.size or not _are_hashes(before.root, after.root, *proof):
        return False
    if before.size == after.size:
        return not proof and before.root == after.root
    path = [before.root, *proof] if before.size & (before.size - 1) == 0 else list(proof)
    if not path:
        return False
    position, last = before.size - 1, after.size - 1
    while position & 1:
        position, last = position >> 1, last >> 1
    return _rebuild_roots(path, position, last) == (before.root, after.root)


def _rebuild_roots(path: list[bytes], position: int, last: int) -> tuple[bytes, bytes] | None:
    """Roots of the older and the newer tree that the path leads to; None if it is too long or too short."""
    old = new = path[0]
    for each in path[1:]:
        if last == 0:
            return None
        if position & 1 or position == last:
            old, new = hash_node(each, old), hash_node(each, new)
            position, last = _skip_levels(position, last)
        else:
            new = hash_node(new, each)
        position, last = position >> 1, last >> 1
    return (old, new) if last == 0 else None


def _skip_levels(position: int, last: int) -> tuple[int, int]:
    """Go up past the levels at which this subtree has no right neighbour; `position` is not 0."""
    while not position & 1:
        position, last = position >> 1, last >> 1
    return position, last


def _subtree_root(start: int, stop: int, node: NodeReader) -> bytes:
    """Root of the leaves start..stop; `start` is a multiple of every subtree's size in there."""
    count = stop - start
    if count & (count - 1) == 0:
        return node(count.bit_length() - 1, start // count)
    middle = start + _split_point(count)
    return hash_node(_subtree_root(start, middle, node), _subtree_root(middle, stop, node))


def _split_point(count: int) -> int:
    """Largest power of two below `count`: where RFC 9162 splits a tree."""
    return 1 << ((count - 1).bit_length() - 1)


def _are_hashes(*values: bytes) -> bool:
    """Whether each value is bytes of the length of a SHA-256."""
    return all(type(value) is bytes and len(value) == HASH_BYTES for value in values)

"""Merkle tree of RFC 9162 (section 2.1, SHA-256): roots, inclusion and consistency proofs, made and verified. Pure.

Rule: a leaf and a node are hashed under different first bytes, so no node can be shown as a leaf (second preimage). A
proof that is not exactly right in number, length and order of its hashes is refused; nothing of it is interpreted.

Where the nodes are stored is the caller's business: functions that need them take a `Node` reader, which is called
with (level, index).
"""

from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import NamedTuple

HASH_BYTES = 32
EMPTY = sha256(b"").digest()  # the root of a tree without leaves
_LEAF, _NODE = b"\0", b"\1"

# The root of the complete subtree of 2**level leaves that begins at leaf index * 2**level.
Node = Callable[[int, int], bytes]
Proof = Sequence[bytes]


class Made(NamedTuple):
    """A complete subtree that came into being when a leaf was appended: what the caller stores."""

    level: int
    place: int
    hash: bytes


class Tree(NamedTuple):
    """Size (number of leaves) and root hash of a tree at one moment; RFC 9162 calls it a tree head."""

    size: int
    root: bytes


def leaf_hash(data: bytes) -> bytes:
    """Hash of a leaf: SHA-256(0x00 | data)."""
    return sha256(_LEAF + data).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """Hash of an inner node: SHA-256(0x01 | left | right)."""
    return sha256(_NODE + left + right).digest()


def append(size: int, leaf: bytes, node: Node) -> list[Made]:
    """Append a leaf of hash `leaf` to a tree of `size` leaves; returns the nodes to store, the leaf itself first.

    `node` must know every complete subtree of the first `size` leaves.
    """
    made = [Made(0, size, leaf)]
    while made[-1].place & 1:
        level, index, right = made[-1]
        made.append(Made(level + 1, index >> 1, node_hash(node(level, index - 1), right)))
    return made


def root(size: int, node: Node) -> bytes:
    """Root hash of the first `size` leaves; SHA-256 of nothing for an empty tree."""
    return _root(0, size, node) if size else EMPTY


def inclusion(index: int, size: int, node: Node) -> tuple[bytes, ...]:
    """Inclusion proof PATH(index, D[size]) of RFC 9162, 2.1.3.1: sibling hashes from the leaf up.

    Raises ValueError if there is no such leaf.
    """
    if not 0 <= index < size:
        raise ValueError(f"no leaf {index} in a tree of {size}")
    path: list[bytes] = []
    start, stop = 0, size
    while stop - start > 1:
        middle = start + _left(stop - start)
        if index < middle:
            path.append(_root(middle, stop, node))
            stop = middle
        else:
            path.append(_root(start, middle, node))
            start = middle
    return tuple(reversed(path))


def consistency(first: int, second: int, node: Node) -> tuple[bytes, ...]:
    """Consistency proof PROOF(first, D[second]) of RFC 9162, 2.1.4.1.

    Raises ValueError unless 0 < first <= second.
    """
    if not 0 < first <= second:
        raise ValueError(f"no proof from {first} to {second} leaves")
    path: list[bytes] = []
    start, stop, whole = 0, second, True
    while first != stop:
        middle = start + _left(stop - start)
        if first <= middle:
            path.append(_root(middle, stop, node))
            stop = middle
        else:
            path.append(_root(start, middle, node))
            start, whole = middle, False
    if not whole:
        path.append(_root(start, stop, node))
    return tuple(reversed(path))


def includes(tree: Tree, index: int, leaf: bytes, proof: Proof) -> bool:
    """Verify an inclusion proof: whether the leaf of hash `leaf` is at `index` of the tree (RFC 9162, 2.1.3.2)."""
    if not 0 <= index < tree.size or not _hashes(leaf, tree.root, *proof):
        return False
    position, last, found = index, tree.size - 1, leaf
    for each in proof:
        if last == 0:
            return False
        if position & 1 or position == last:
            found = node_hash(each, found)
            position, last = _climb(position, last)
        else:
            found = node_hash(found, each)
        position, last = position >> 1, last >> 1
    return last == 0 and found == tree.root


def extends(before: Tree, after: Tree, proof: Proof) -> bool:
    """Verify a consistency proof: whether `after` is `before` with leaves appended (RFC 9162, 2.1.4.2).

    From an empty tree nothing can be proved, so `before` must have a leaf.
    """
    if not 0 < before.size <= after.size or not _hashes(before.root, after.root, *proof):
        return False
    if before.size == after.size:
        return not proof and before.root == after.root
    path = [before.root, *proof] if before.size & (before.size - 1) == 0 else list(proof)
    if not path:
        return False
    position, last = before.size - 1, after.size - 1
    while position & 1:
        position, last = position >> 1, last >> 1
    return _both_roots(path, position, last) == (before.root, after.root)


def _both_roots(path: list[bytes], position: int, last: int) -> tuple[bytes, bytes] | None:
    """Roots of the older and the newer tree that the path leads to; None if it is too long or too short."""
    old = new = path[0]
    for each in path[1:]:
        if last == 0:
            return None
        if position & 1 or position == last:
            old, new = node_hash(each, old), node_hash(each, new)
            position, last = _climb(position, last)
        else:
            new = node_hash(new, each)
        position, last = position >> 1, last >> 1
    return (old, new) if last == 0 else None


def _climb(position: int, last: int) -> tuple[int, int]:
    """Go up past the levels at which this subtree has no right neighbour."""
    while position and not position & 1:
        position, last = position >> 1, last >> 1
    return position, last


def _root(start: int, stop: int, node: Node) -> bytes:
    """Root of the leaves start..stop; `start` is a multiple of every subtree's size in there."""
    count = stop - start
    if count & (count - 1) == 0:
        return node(count.bit_length() - 1, start // count)
    middle = start + _left(count)
    return node_hash(_root(start, middle, node), _root(middle, stop, node))


def _left(count: int) -> int:
    """Largest power of two below `count`: where RFC 9162 splits a tree."""
    return 1 << ((count - 1).bit_length() - 1)


def _hashes(*values: bytes) -> bool:
    """Whether each value is bytes of the length of a SHA-256."""
    return all(type(value) is bytes and len(value) == HASH_BYTES for value in values)

"""Ed25519 from its equations (RFC 8032, section 5.1), slow and plain: makes the signatures that no honest signer makes.

Points are affine. `craft` makes S for whatever A and R are given, with parts of small order in them too, so that a test
can say which equation of section 5.1.7 a signature satisfies: that with the cofactor (8 S B = 8 R + 8 h A), the one
without it as well, or none.
"""

from collections.abc import Collection
from hashlib import sha512
from typing import NamedTuple

PRIME = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
_D = -121665 * pow(121666, -1, PRIME) % PRIME
_ROOT = pow(2, (PRIME - 1) // 4, PRIME)


class Point(NamedTuple):
    """A point of the curve."""

    x: int
    y: int


class Crafted(NamedTuple):
    """A public key, a message and a signature, as they go over the wire."""

    key: bytes
    message: bytes
    signature: bytes


def add(one: Point, other: Point) -> Point:
    """The sum of two points."""
    product = _D * one.x * other.x * one.y * other.y
    x = (one.x * other.y + other.x * one.y) * pow(1 + product, -1, PRIME)
    y = (one.y * other.y + one.x * other.x) * pow(1 - product, -1, PRIME)
    return Point(x % PRIME, y % PRIME)


def multiply(scalar: int, point: Point) -> Point:
    """The point added to itself, `scalar` times."""
    total = NEUTRAL
    for bit in f"{scalar:b}":
        total = add(total, total)
        if bit == "1":
            total = add(total, point)
    return total


def find_point(y: int) -> Point | None:
    """The point with this y and an even x; None if the curve has none."""
    square = (y * y - 1) * pow(_D * y * y + 1, -1, PRIME) % PRIME
    x = pow(square, (PRIME + 3) // 8, PRIME)
    x = x if x * x % PRIME == square else x * _ROOT % PRIME
    if x * x % PRIME != square:
        return None
    return Point(x if x % 2 == 0 else PRIME - x, y)


def encode(point: Point) -> bytes:
    """A point in 32 bytes: y, and the lowest bit of x above it."""
    return (point.y | (point.x & 1) << 255).to_bytes(32, "little")


def find_small_order() -> Point:
    """A point of order 8."""
    for y in range(2, 100):
        point = find_point(y)
        small = multiply(ORDER, point) if point else NEUTRAL
        if multiply(4, small) != NEUTRAL:
            return small
    raise AssertionError("every second point would do")


def compute_challenge(first: bytes, key: bytes, message: bytes) -> int:
    """h of the equations. `first`, `key`: R and A as they are sent."""
    return int.from_bytes(sha512(first + key + message).digest(), "little") % ORDER


def craft(secret: int, nonce: int, key: bytes, first: bytes, message: bytes = b"x") -> Crafted:
    """The signature with S = nonce + h secret. `key`, `first`: A and R as they are sent, of whatever points."""
    scalar = (nonce + compute_challenge(first, key, message) * secret) % ORDER
    return Crafted(key, message, first + scalar.to_bytes(32, "little"))


def craft_where(rests: Collection[int], secret: int, nonce: int, key: bytes, first: bytes) -> Crafted:
    """The same for the first message, by counting, whose h modulo 8 is one of `rests`."""
    texts = (number.to_bytes(4, "big") for number in range(10_000))
    message = next(text for text in texts if compute_challenge(first, key, text) % 8 in rests)
    return craft(secret, nonce, key, first, message)


NEUTRAL = Point(0, 1)
BASE = find_point(4 * pow(5, -1, PRIME) % PRIME) or NEUTRAL

"""Random inputs of a parser: sound ones with a few parts cut, doubled, swapped or replaced; the same for the same seed.

Rule: a parser of what comes from outside raises the errors that it declares, and nothing else. `make test` tries
`FEW` inputs, `make heavy` 100,000, or as many as `SKERRY_EXAMPLES` says in figures.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from random import Random

import pytest

from tests.examples import WANTED

FEW = 300
MANY = int(WANTED) if WANTED.isdecimal() else 100_000
COUNTS = (FEW, pytest.param(MANY, marks=[pytest.mark.heavy, pytest.mark.timeout(3600)]))
NUMBERS = (
    b"0",
    b"1",
    b"-1",
    b"255",
    b"65536",
    b"2147483647",
    b"4294967296",
    b"9223372036854775808",
    b"1e400",
    b"9" * 25,
)
NOISE = (
    b"",
    b"\x00",
    b"\xff",
    b"\xc3",
    b"\xed\xa0\x80",
    b"\\ud800",
    b"\n",
    b"'",
    b'"',
    b"[" * 40,
    b"(" * 40,
    b"{" * 40,
)
_WORD = re.compile(rb'"[^"\\]*"|\[[^\[\]]*\]|[A-Za-z0-9_.+-]+')


def damage(dice: Random, data: bytes, words: Sequence[bytes]) -> bytes:
    """`data` with one to six changes; `words`: what the format gives a meaning, in place of others or anywhere."""
    found = bytearray(data)
    for _ in range(dice.choice((1, 1, 2, 3, 6))):
        if words and dice.random() < 0.7:
            _swap_word(dice, found, words)
            continue
        at, size = dice.randrange(len(found) + 1), dice.choice((1, 1, 2, 4, 8, 60))
        match dice.randrange(7):
            case 0 if at < len(found):
                found[at] ^= 1 << dice.randrange(8)
            case 1:
                del found[at : at + size]
            case 2:
                found[at:at] = found[at : at + size] * dice.choice((1, 1, 2, 50))
            case 3:
                found[at : at + size] = dice.randbytes(size)
            case 4:
                begin = dice.randrange(len(found) + 1)
                found[at : at + size] = found[begin : begin + size]
            case 5:
                found[at : at + dice.choice((0, 0, size))] = dice.choice((*words, *NUMBERS))
            case _:
                found[at : at + dice.choice((0, 1))] = dice.choice(NOISE)
    return bytes(found)


def _swap_word(dice: Random, found: bytearray, words: Sequence[bytes]) -> None:
    """Put another word in the place of one: mostly of its kind (a quoted one, a list, a number), so that it is read."""
    spans = [match.span() for match in _WORD.finditer(found)]
    if not spans:
        return
    begin, end = dice.choice(spans)
    others = [*words, *NUMBERS, *(bytes(found[at:to]) for at, to in spans), b"[%s]" % found[begin:end]]
    alike = [other for other in others if _kind(other) == _kind(found[begin:end])] if dice.random() < 0.8 else []
    found[begin:end] = dice.choice(alike or others)


def _kind(word: bytes | bytearray) -> int:
    return b'"['.find(word[:1]) if word[:1] in b'"[' else 2 + word[:1].isalpha()


def random_inputs(count: int, sound: Sequence[bytes], words: Sequence[bytes] = ()) -> Iterator[bytes]:
    """Inputs of a parser: one in sixteen is noise, the others are damaged copies of `sound`, none of them empty."""
    for seed in range(count):
        dice = Random(seed)  # one for each: a failure is found again by its number alone
        yield dice.randbytes(dice.randrange(200)) if seed % 16 == 15 else damage(dice, dice.choice(sound), words)


def try_parser(
    parse: Callable[[bytes], object], declared: type[Exception] | tuple[type[Exception], ...], inputs: Iterator[bytes]
) -> int:
    """Give a parser all inputs; returns how many it took. Fails with the input that raised another error."""
    taken = 0
    for number, data in enumerate(inputs):
        try:
            parse(data)
        except declared:
            continue
        except Exception as error:
            raise AssertionError(f"input {number}, {data[:2000]!r}: {error!r}") from error
        taken += 1
    return taken

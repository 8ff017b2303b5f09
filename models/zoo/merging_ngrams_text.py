"""Text to whole numbers without a vocabulary: hashed n-grams of words and of the characters in them.

Law: numpy and the standard library only, so that a device can do it; nothing is learnt here, so nothing of the training
texts is in it. The n-grams are (after lower-casing, every run of what is no letter, digit or apostrophe being a gap):

- `w:` one, two and three neighbouring words, joined by a space, the text between a `<` and a `>` that count as words;
- `c:` two to five neighbouring characters of each word between two spaces: `c: pa`, `c:pay `.

An n-gram's number is 1 + CRC-32 of its UTF-8 bytes modulo (buckets - 1); 0 fills up. Each number counts once per text
(Weinberger et al. 2009, feature hashing; Bojanowski et al. 2017, words by their character n-grams). Any language has a
CRC-32: another client needs these fifteen lines, no file.
"""

import re
import zlib
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

BUCKETS = 1 << 17
LENGTH = 320  # numbers per text (one in a thousand has more); a long text loses characters of its last words
_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")
_WORDS, _CHARACTERS = (1, 2, 3), (2, 3, 4, 5)

Ids = npt.NDArray[np.int64]


def encode(texts: Sequence[str], buckets: int = BUCKETS, length: int = LENGTH) -> Ids:
    """`[n, length]` numbers 0..buckets - 1, zeros behind the last n-gram."""
    found = np.zeros((len(texts), length), np.int64)
    for row, text in zip(found, texts, strict=True):
        ids = list(dict.fromkeys(1 + zlib.crc32(gram.encode()) % (buckets - 1) for gram in grams(text)))[:length]
        row[: len(ids)] = ids
    return found


def grams(text: str) -> Iterator[str]:
    """The n-grams of one text, those of words first, shorter ones before longer ones."""
    words = _WORD.findall(text.lower())
    fenced = ["<", *words, ">"]
    for size in _WORDS:
        for start in range(len(fenced) - size + 1):
            yield "w:" + " ".join(fenced[start : start + size])
    for word in words:
        spaced = f" {word} "
        for size in _CHARACTERS:
            for start in range(len(spaced) - size + 1):
                yield "c:" + spaced[start : start + size]

"""Text that gives a person away, found by patterns and blotted out. A second net under the label, never the gate.

Law: a closed list of patterns, each of bounded length, so that no text takes long; a text keeps its length in bytes.
"""

import re
from collections.abc import Sequence

BLOT = b"*"
ALWAYS = ("email", "phone", "iban", "card", "ip", "url", "number")  # done to every text that leaves

PATTERNS: dict[str, re.Pattern[bytes]] = {
    "email": re.compile(rb"[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9.-]{1,190}\.[A-Za-z]{2,24}"),
    "url": re.compile(rb"(?:https?://|www\.)[^\s]{1,500}", re.IGNORECASE),
    "iban": re.compile(rb"\b[A-Z]{2}[0-9]{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?\b"),
    "card": re.compile(rb"\b[0-9](?:[ -]?[0-9]){12,18}\b"),
    "ip": re.compile(rb"\b[0-9]{1,3}(?:\.[0-9]{1,3}){3}\b|\b(?:[0-9A-Fa-f]{1,4}:){2,7}[0-9A-Fa-f]{0,4}\b"),
    "phone": re.compile(rb"\+?[0-9](?:[ ()/.-]{0,2}[0-9]){6,14}"),
    "date": re.compile(rb"\b[0-9]{1,4}[./-][0-9]{1,2}[./-][0-9]{1,4}\b"),
    "number": re.compile(rb"[0-9]{4,40}"),
    "name": re.compile(rb"\b(?:Mr|Mrs|Ms|Dr|Prof|Herr|Frau)\.? [A-Z][^\s,.;]{1,40}(?: [A-Z][^\s,.;]{1,40}){0,2}"),
}


def redacted(text: bytes, names: Sequence[str]) -> bytes:
    """`text` (UTF-8) with what the named patterns and those of `ALWAYS` find replaced by asterisks. KeyError: no such.

    They run in the order of `PATTERNS`; each sees what those before it have left.
    """
    wanted = {name: PATTERNS[name] for name in (*names, *ALWAYS)}
    for name, pattern in PATTERNS.items():
        if name in wanted:
            text = pattern.sub(_blot, text)
    return text


def _blot(found: re.Match[bytes]) -> bytes:
    return BLOT * len(found[0])

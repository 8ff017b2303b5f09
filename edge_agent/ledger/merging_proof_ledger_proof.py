"""A proof of what did not leave, as one JSON file that another machine checks without the hub and without this device.

Law: the file holds every entry between two signed heads, so nothing in between can be left out; what a hub signed of
these heads comes with them. Whoever checks it computes everything anew and believes no word of it but two keys.
"""

import sqlite3
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from edge_agent.identity.identity import Identity
from edge_agent.storage import ledger, ledger_heads, merging_tables_meta
from edge_agent.storage.ledger_heads import Signed, Witnessed
from wire.ledger.chain import Form, Kind, Link
from wire.process.exit_codes import Exit, ExitError
from wire.protocol.messages import Level

FORMAT = 1


class Claim(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No field above `level` was sent to `region` ("" = to any) from `since_ms` up to, not including, `until_ms`."""

    level: Level
    region: str
    since_ms: int
    until_ms: int


class ProofHead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    entry: int
    at_ms: int
    hash: bytes
    signature: bytes


class Witness(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a hub logged of the head at `entry`; the checkpoint is signed by `key` (raw Ed25519)."""

    entry: int
    hub: str
    key: bytes
    checkpoint: str
    index: int
    received_ms: int
    epochs: int
    inclusion: tuple[bytes, ...]


class ProofEntry(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A `Link`; `form` counts into the file's forms."""

    entry: int
    at_ms: int
    seq: int
    kind: int
    size: int
    charge: int
    releases: int
    form: int
    digest: bytes
    id: str


class ProofFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`start` None: the entries begin with the ledger itself. `epoch` in hex, as everywhere; bytes are base64."""

    skerry_proof: int
    claim: Claim
    device: str
    key: bytes
    epoch: str
    start: ProofHead | None
    end: ProofHead
    forms: tuple[Form, ...]
    entries: tuple[ProofEntry, ...]
    witnesses: tuple[Witness, ...]


class _Span(NamedTuple):
    """The heads around a claim's time; `start` None = the beginning of the ledger."""

    start: Signed | None
    end: Signed
    witnesses: tuple[Witnessed, ...]


def prove(db: sqlite3.Connection, identity: Identity, claim: Claim) -> bytes:
    """The file's bytes.

    ExitError(CHECK_FAILED) if it is not so, ExitError(NOT_FOUND) if the ledger does not reach that far.
    """
    epoch = merging_tables_meta.get(db, "epoch", 0)
    span = _span(db, claim)
    after = span.start.entry if span.start else 0
    forms = ledger.forms(db, after, span.end.entry)
    links = [link for link, _ in ledger.links(db, after, span.end.entry)]
    number = {name: index for index, name in enumerate(forms)}
    file = ProofFile(
        skerry_proof=FORMAT,
        claim=claim,
        device=identity.device,
        key=identity.signing.public_key().public_bytes_raw(),
        epoch=f"{epoch:x}",
        start=ProofHead(*span.start) if span.start else None,
        end=ProofHead(*span.end),
        forms=tuple(forms.values()),
        entries=tuple(ProofEntry(*link[:7], number[link.form], link.digest, link.id) for link in links),
        witnesses=tuple(Witness(*each) for each in span.witnesses),
    )
    against = next(breaking(claim, links, forms), None)
    if against is not None:
        raise ExitError(Exit.CHECK_FAILED, f"it is not so: {against}; no proof was written")
    return msgspec.json.format(msgspec.json.encode(file), indent=0) + b"\n"


def reaches_ms(db: sqlite3.Connection) -> int:
    """How late a claim may reach: to the newest head that a hub has witnessed, failing that the newest signed."""
    held = {each.entry for each in ledger_heads.witnesses(db)}
    signed = list(ledger_heads.everything(db))
    if not signed:
        raise ExitError(Exit.NOT_FOUND, "no head is signed yet: start the agent once")
    return max((head for head in signed if head.entry in held), default=signed[-1]).at_ms


def _span(db: sqlite3.Connection, claim: Claim) -> _Span:
    signed = list(ledger_heads.everything(db))
    held: dict[int, Witnessed] = {each.entry: each for each in ledger_heads.witnesses(db)}
    before = [head for head in signed if head.at_ms <= claim.since_ms]
    behind = [head for head in signed if head.at_ms >= claim.until_ms]
    first = db.execute("select min(entry) from entries").fetchone()[0]
    if not before and first not in (None, 1):
        raise ExitError(Exit.NOT_FOUND, "the ledger was pruned: it begins later than that; ask for a later --since")
    if not behind:
        raise ExitError(Exit.NOT_FOUND, "no head so late is signed yet; ask for an earlier --until, or ask later")
    start = _best(before[::-1], held) if before else None
    end = _best(behind, held)
    used = tuple(held[head.entry] for head in (start, end) if head is not None and head.entry in held)
    return _Span(start, end, used)


def _best(nearest_first: list[Signed], held: dict[int, Witnessed]) -> Signed:
    """The nearest that a hub has witnessed, failing that the nearest."""
    return next((head for head in nearest_first if head.entry in held), nearest_first[0])


def breaking(claim: Claim, links: list[Link], forms: dict[bytes, Form]) -> Iterator[str]:
    """Entries that are against the claim, in words."""
    above = {name: _above(form, claim.level) for name, form in forms.items()}
    withheld = Counter(link.digest for link in links if link.kind == Kind.WITHHELD)
    for link in links:
        form = forms[link.form]
        elsewhere = claim.region and claim.region not in form.region.split("+")
        if elsewhere or link.kind == Kind.WITHHELD or not above[link.form]:
            continue
        if withheld[link.digest]:  # recorded, and followed by the word that it did not leave after all
            withheld[link.digest] -= 1
        elif claim.since_ms <= link.at_ms < claim.until_ms:
            yield f"entry {link.entry} sent {above[link.form]} to region {form.region}"


def _above(form: Form, level: Level) -> str:
    return ", ".join(f"{name} ({word})" for name, word in form.fields.items() if level_of(word) > level)


def level_of(word: str) -> Level:
    """An unknown level is the highest."""
    return Level[word] if word in Level.__members__ else Level.P4

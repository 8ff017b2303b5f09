"""Proofs of what did not leave the device: writes one JSON file, and checks such a file on any other machine.

Rule: the file holds every entry between two signed heads, so nothing in between can be left out; what a hub signed of
these heads is included. Whoever checks the file computes everything again and trusts nothing but two public keys.
Rule: the checker needs no device, no hub and no network. What a proof is worth rests on the device's key and, where a
hub witnessed the heads, on the hub's key too: without that, a thief of the device's key could have made it.
"""

import sqlite3
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from edge_agent.identity.identity import Identity
from edge_agent.ledger_audit.verify import EvidenceKind, Finding, LedgerOwner, is_witnessed
from edge_agent.storage import ledger, ledger_heads, tables
from edge_agent.storage.ledger_heads import SignedHead, WitnessedHead
from wire.ledger import chain
from wire.ledger.chain import EntryForm, EntryKind, LedgerEntry, LedgerHead
from wire.process.exit_codes import ExitCode, ExitError
from wire.protocol.messages import SensitivityLevel
from wire.protocol.sealing import compute_key_id

FORMAT = 1


class Claim(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The statement to prove: no field above `level` was sent to `region` in a span of time.

    From `since_ms` up to, not including, `until_ms` (hub time). `region` "" = to any region.
    """

    level: SensitivityLevel
    region: str
    since_ms: int
    until_ms: int


class ProofHead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A signed head of the ledger, as the file holds it."""

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
    """One ledger entry; `form` is an index into the file's forms."""

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
    """A proof file.

    `start` None: the entries begin with the ledger itself. `epoch` is hexadecimal, bytes are base64.
    """

    skerry_proof: int
    claim: Claim
    device: str
    key: bytes
    epoch: str
    start: ProofHead | None
    end: ProofHead
    forms: tuple[EntryForm, ...]
    entries: tuple[ProofEntry, ...]
    witnesses: tuple[Witness, ...]


class _HeadSpan(NamedTuple):
    """The heads around a claim's time; `start` None = the beginning of the ledger."""

    start: SignedHead | None
    end: SignedHead
    witnesses: tuple[WitnessedHead, ...]


def make_proof(db: sqlite3.Connection, identity: Identity, claim: Claim) -> bytes:
    """Make the proof of a claim: the file's bytes.

    ExitError(CHECK_FAILED) if the claim is false, ExitError(NOT_FOUND) if the ledger does not cover its time.
    """
    epoch = tables.read_value(db, "epoch", 0)
    span = _find_span(db, claim)
    after = span.start.entry if span.start else 0
    forms = ledger.read_forms(db, after, span.end.entry)
    links = [link for link, _ in ledger.iterate_links(db, after, span.end.entry)]
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
    against = next(find_violations(claim, links, forms), None)
    if against is not None:
        raise ExitError(ExitCode.CHECK_FAILED, f"the claim is false: {against}; no proof was written")
    return msgspec.json.format(msgspec.json.encode(file), indent=0) + b"\n"


def latest_provable_ms(db: sqlite3.Connection) -> int:
    """The latest time that a claim can cover, in hub milliseconds.

    It is that of the newest head a hub has witnessed, failing that of the newest signed. ExitError(NOT_FOUND) if there
    is no head.
    """
    held = {each.entry for each in ledger_heads.iterate_witnessed(db)}
    signed = list(ledger_heads.iterate_heads(db))
    if not signed:
        raise ExitError(ExitCode.NOT_FOUND, "no head is signed yet: start the agent once")
    return max((head for head in signed if head.entry in held), default=signed[-1]).at_ms


def _find_span(db: sqlite3.Connection, claim: Claim) -> _HeadSpan:
    """The heads nearest around a claim's time. ExitError(NOT_FOUND) if there are none."""
    signed = list(ledger_heads.iterate_heads(db))
    held: dict[int, WitnessedHead] = {each.entry: each for each in ledger_heads.iterate_witnessed(db)}
    before = [head for head in signed if head.at_ms <= claim.since_ms]
    behind = [head for head in signed if head.at_ms >= claim.until_ms]
    first = db.execute("select min(entry) from entries").fetchone()[0]
    if not before and first not in (None, 1):
        raise ExitError(ExitCode.NOT_FOUND, "the ledger was pruned: it begins later than that; ask for a later --since")
    if not behind:
        raise ExitError(ExitCode.NOT_FOUND, "no head that late is signed yet; give an earlier --until, or try later")
    start = _pick_head(before[::-1], held) if before else None
    end = _pick_head(behind, held)
    used = tuple(held[head.entry] for head in (start, end) if head is not None and head.entry in held)
    return _HeadSpan(start, end, used)


def _pick_head(nearest_first: list[SignedHead], held: dict[int, WitnessedHead]) -> SignedHead:
    """The nearest that a hub has witnessed, failing that the nearest."""
    return next((head for head in nearest_first if head.entry in held), nearest_first[0])


def find_violations(claim: Claim, links: list[LedgerEntry], forms: dict[bytes, EntryForm]) -> Iterator[str]:
    """Describe the entries that violate the claim; none = it holds."""
    above = {name: _list_above(form, claim.level) for name, form in forms.items()}
    withheld = Counter(link.digest for link in links if link.kind == EntryKind.WITHHELD)
    for link in links:
        form = forms[link.form]
        elsewhere = claim.region and claim.region not in form.region.split("+")
        if elsewhere or link.kind == EntryKind.WITHHELD or not above[link.form]:
            continue
        if withheld[link.digest]:  # recorded, then withdrawn by a later entry: it was not sent
            withheld[link.digest] -= 1
        elif claim.since_ms <= link.at_ms < claim.until_ms:
            yield f"entry {link.entry} sent {above[link.form]} to region {form.region}"


def _list_above(form: EntryForm, level: SensitivityLevel) -> str:
    """The fields above this level, as text; "" if there are none."""
    return ", ".join(f"{name} ({word})" for name, word in form.fields.items() if parse_level(word) > level)


def parse_level(word: str) -> SensitivityLevel:
    """Parse a level's name; an unknown one counts as the highest."""
    return SensitivityLevel[word] if word in SensitivityLevel.__members__ else SensitivityLevel.P4


class CheckedProof(NamedTuple):
    """Result of a check.

    `holds`: the claim is proved. `witnessed`: it rests not on the device's key alone, a hub's log confirms it.
    """

    file: ProofFile
    findings: tuple[Finding, ...]
    witnessed: bool

    @property
    def holds(self) -> bool:
        """Whether every finding is good."""
        return all(finding.good for finding in self.findings)


def parse_proof(data: bytes) -> ProofFile:
    """Parse a proof file. ExitError(SAMPLE) if it is none."""
    try:
        file = msgspec.json.decode(data, type=ProofFile)
        int(file.epoch, 16)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise ExitError(ExitCode.SAMPLE, f"this is not a proof file: {str(error)[:120]}") from None
    if file.skerry_proof != FORMAT:
        raise ExitError(
            ExitCode.SAMPLE, f"a proof of format {file.skerry_proof}, this program knows {FORMAT}: update it"
        )
    return file


def check_proof(file: ProofFile, hub_key: bytes = b"", device_key: bytes = b"") -> CheckedProof:
    """Check a proof file: keys, heads, chain, claim and witnesses.

    `hub_key`, `device_key`: raw Ed25519 keys from a source that the checker trusts; b"" = use those in the file and
    show them.
    """
    owner = LedgerOwner(file.device, file.key, {})
    findings = [_check_key(file, device_key), *_check_heads(file), *_check_chain(file)]
    if all(finding.good for finding in findings):
        findings += _check_claim(file)
    witnessed = _check_witnesses(file, owner, hub_key)
    return CheckedProof(file, (*findings, *witnessed), any(each.good for each in witnessed))


def _check_key(file: ProofFile, device_key: bytes) -> Finding:
    name = compute_key_id(file.key).hex()
    if device_key and device_key != file.key:
        return Finding(False, EvidenceKind.HEAD, f"the file names another device key ({name}) than the one you gave")
    return Finding(True, EvidenceKind.HEAD, f"device {file.device}, key {name}")


def _check_heads(file: ProofFile) -> list[Finding]:
    """Check that both heads are signed and span the claimed time."""
    claim, start, end = file.claim, file.start, file.end
    if any(not _is_signed(file, head) for head in (start, end) if head is not None):
        return [Finding(False, EvidenceKind.HEAD, "a head is not signed by the device's key")]
    if (start is not None and start.at_ms > claim.since_ms) or end.at_ms < claim.until_ms:
        return [Finding(False, EvidenceKind.HEAD, "the heads do not span the time that is claimed")]
    return [
        Finding(
            True, EvidenceKind.HEAD, f"heads at entries {start.entry if start else 0} and {end.entry} span the time"
        )
    ]


def _is_signed(file: ProofFile, head: ProofHead) -> bool:
    said = LedgerHead(file.device, int(file.epoch, 16), head.entry, head.at_ms, head.hash)
    return chain.verify_head(said, head.signature, file.key)


def _check_chain(file: ProofFile) -> list[Finding]:
    """Follow the hash chain from the first head to the last: numbers, order, times and hashes."""
    before = file.start.hash if file.start else chain.genesis_hash(int(file.epoch, 16))
    at, at_ms = (file.start.entry, file.start.at_ms) if file.start else (0, 0)
    try:
        for link in _make_links(file):
            at += 1
            if link.entry != at or link.at_ms < at_ms:
                return [Finding(False, EvidenceKind.CHAIN, f"entry {link.entry} is out of order")]
            before, at_ms = chain.chain_hash(before, link), link.at_ms
    except (IndexError, ValueError):
        return [Finding(False, EvidenceKind.CHAIN, f"entry {at} has invalid fields")]
    if (at, before) != (file.end.entry, file.end.hash) or at_ms > file.end.at_ms:
        return [Finding(False, EvidenceKind.CHAIN, "the entries do not lead from one head to the other")]
    return [Finding(True, EvidenceKind.CHAIN, f"{len(file.entries)} entries lead from one to the other, none left out")]


def _make_links(file: ProofFile) -> list[LedgerEntry]:
    names = [chain.hash_form(form) for form in file.forms]
    return [_make_link(each, names[each.form] if each.form >= 0 else b"") for each in file.entries]


def _make_link(e: ProofEntry, form: bytes) -> LedgerEntry:
    return LedgerEntry(
        entry=e.entry, at_ms=e.at_ms, seq=e.seq, kind=e.kind, size=e.size, charge=e.charge, releases=e.releases,
        form=form, digest=e.digest, id=e.id,
    )  # fmt: skip


def _check_claim(file: ProofFile) -> list[Finding]:
    """Check that no entry violates the claim."""
    claim, forms = file.claim, {chain.hash_form(form): form for form in file.forms}
    against = [*find_violations(claim, _make_links(file), forms)]
    if against:
        return [Finding(False, EvidenceKind.CHAIN, each) for each in against[:10]]
    where = f"region {claim.region}" if claim.region else "any region"
    return [Finding(True, EvidenceKind.CHAIN, f"none of them sent a field above {claim.level.name} to {where}")]


def _check_witnesses(file: ProofFile, owner: LedgerOwner, hub_key: bytes) -> list[Finding]:
    """Check each witness: Merkle inclusion and the hub's signature."""
    findings: list[Finding] = []
    heads = {head.entry: head for head in (file.start, file.end) if head is not None}
    for each in file.witnesses:
        head = heads.get(each.entry)
        fields = (getattr(each, name) for name in each.__struct_fields__)
        said = WitnessedHead(*fields)
        if head is None or not is_witnessed(owner, int(file.epoch, 16), SignedHead(*_head_values(head)), said):
            findings.append(
                Finding(False, EvidenceKind.LOG, f"what {each.hub[:64]} signed of entry {each.entry} is wrong")
            )
        elif hub_key and hub_key != each.key:
            findings.append(
                Finding(False, EvidenceKind.LOG, f"{each.hub} signed with another key than the one you gave")
            )
        else:
            words = f"{each.hub} (key {compute_key_id(each.key).hex()}) logged the head at entry {each.entry}"
            findings.append(Finding(True, EvidenceKind.LOG, f"{words} as number {each.index}"))
    return findings + (_check_alone(file) if findings and all(each.good for each in findings) else [])


def _head_values(head: ProofHead) -> tuple[int, int, bytes, bytes]:
    return head.entry, head.at_ms, head.hash, head.signature


def _check_alone(file: ProofFile) -> list[Finding]:
    """Check that the device had no other ledger meanwhile.

    The hub counts the epochs (databases) it has seen of each device; equal counts at both heads mean that there was
    none.
    """
    counts = {each.entry: each.epochs for each in file.witnesses}
    first = counts.get(file.start.entry) if file.start else 1
    last = counts.get(file.end.entry)
    if last is None or first is None:
        return []
    if first != last:
        return [Finding(False, EvidenceKind.LOG, "the device had another ledger in that time: this one is incomplete")]
    return [Finding(True, EvidenceKind.LOG, "no other ledger of this device was logged in between")]

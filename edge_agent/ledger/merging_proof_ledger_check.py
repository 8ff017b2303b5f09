"""Checks a proof file on any machine: no device, no hub, no network. Pure but for reading the file.

Law: the file is an accuser's as much as a friend's: everything in it is computed anew. What it proves rests on the
device's key and, where a hub witnessed it, on the hub's: without that, a thief of the device's key could have made it.
"""

from typing import NamedTuple

import msgspec

from edge_agent.ledger.merging_proof_ledger_proof import FORMAT, ProofEntry, ProofFile, ProofHead, breaking
from edge_agent.ledger.merging_verify_ledger_verify import Finding, Proof, Whose, is_witnessed
from edge_agent.storage.ledger_heads import Signed, Witnessed
from wire.ledger import chain
from wire.ledger.chain import Head, Link
from wire.process.exit_codes import Exit, ExitError
from wire.protocol.merging_sealing_seal import key_id


class Checked(NamedTuple):
    """`holds`: the claim is proved. `witnessed`: not on the device's word alone, a hub's log stands behind it."""

    file: ProofFile
    findings: tuple[Finding, ...]
    witnessed: bool

    @property
    def holds(self) -> bool:
        return all(finding.good for finding in self.findings)


def read(data: bytes) -> ProofFile:
    """ExitError(SAMPLE) if it is no proof file."""
    try:
        file = msgspec.json.decode(data, type=ProofFile)
        int(file.epoch, 16)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise ExitError(Exit.SAMPLE, f"this is no proof file: {str(error)[:120]}") from None
    if file.skerry_proof != FORMAT:
        raise ExitError(Exit.SAMPLE, f"a proof of format {file.skerry_proof}, this program knows {FORMAT}: update it")
    return file


def check(file: ProofFile, hub_key: bytes = b"", device_key: bytes = b"") -> Checked:
    """`hub_key`, `device_key`: raw Ed25519, from somebody you believe; b"" = those in the file are taken and shown."""
    owner = Whose(file.device, file.key, {})
    findings = [_key(file, device_key), *_heads(file), *_chain(file)]
    if all(finding.good for finding in findings):
        findings += _claim(file)
    witnessed = _witnesses(file, owner, hub_key)
    return Checked(file, (*findings, *witnessed), any(each.good for each in witnessed))


def _key(file: ProofFile, device_key: bytes) -> Finding:
    name = key_id(file.key).hex()
    if device_key and device_key != file.key:
        return Finding(False, Proof.HEAD, f"the file names another device key ({name}) than the one you gave")
    return Finding(True, Proof.HEAD, f"device {file.device}, key {name}")


def _heads(file: ProofFile) -> list[Finding]:
    claim, start, end = file.claim, file.start, file.end
    if any(not _is_signed(file, head) for head in (start, end) if head is not None):
        return [Finding(False, Proof.HEAD, "a head is not signed by the device's key")]
    if (start is not None and start.at_ms > claim.since_ms) or end.at_ms < claim.until_ms:
        return [Finding(False, Proof.HEAD, "the heads do not span the time that is claimed")]
    return [Finding(True, Proof.HEAD, f"heads at entries {start.entry if start else 0} and {end.entry} span the time")]


def _is_signed(file: ProofFile, head: ProofHead) -> bool:
    said = Head(file.device, int(file.epoch, 16), head.entry, head.at_ms, head.hash)
    return chain.is_signed(said, head.signature, file.key)


def _chain(file: ProofFile) -> list[Finding]:
    """From the first head's hash through every entry to the last one's, in number, order and time."""
    before = file.start.hash if file.start else chain.genesis(int(file.epoch, 16))
    at, at_ms = (file.start.entry, file.start.at_ms) if file.start else (0, 0)
    try:
        for link in _links(file):
            at += 1
            if link.entry != at or link.at_ms < at_ms:
                return [Finding(False, Proof.CHAIN, f"entry {link.entry} is not where it belongs")]
            before, at_ms = chain.follow(before, link), link.at_ms
    except (IndexError, ValueError):
        return [Finding(False, Proof.CHAIN, f"entry {at} holds what no ledger does")]
    if (at, before) != (file.end.entry, file.end.hash) or at_ms > file.end.at_ms:
        return [Finding(False, Proof.CHAIN, "the entries do not lead from one head to the other")]
    return [Finding(True, Proof.CHAIN, f"{len(file.entries)} entries lead from one to the other, none left out")]


def _links(file: ProofFile) -> list[Link]:
    names = [chain.form_id(form) for form in file.forms]
    return [_link(each, names[each.form] if each.form >= 0 else b"") for each in file.entries]


def _link(e: ProofEntry, form: bytes) -> Link:
    return Link(
        entry=e.entry, at_ms=e.at_ms, seq=e.seq, kind=e.kind, size=e.size, charge=e.charge, releases=e.releases,
        form=form, digest=e.digest, id=e.id,
    )  # fmt: skip


def _claim(file: ProofFile) -> list[Finding]:
    claim, forms = file.claim, {chain.form_id(form): form for form in file.forms}
    against = [*breaking(claim, _links(file), forms)]
    if against:
        return [Finding(False, Proof.CHAIN, each) for each in against[:10]]
    where = f"region {claim.region}" if claim.region else "any region"
    return [Finding(True, Proof.CHAIN, f"none of them sent a field above {claim.level.name} to {where}")]


def _witnesses(file: ProofFile, owner: Whose, hub_key: bytes) -> list[Finding]:
    findings: list[Finding] = []
    heads = {head.entry: head for head in (file.start, file.end) if head is not None}
    for each in file.witnesses:
        head = heads.get(each.entry)
        fields = (getattr(each, name) for name in each.__struct_fields__)
        said = Witnessed(*fields)
        if head is None or not is_witnessed(owner, int(file.epoch, 16), Signed(*_values(head)), said):
            findings.append(Finding(False, Proof.LOG, f"what {each.hub[:64]} signed of entry {each.entry} is wrong"))
        elif hub_key and hub_key != each.key:
            findings.append(Finding(False, Proof.LOG, f"{each.hub} signed with another key than the one you gave"))
        else:
            words = f"{each.hub} (key {key_id(each.key).hex()}) logged the head at entry {each.entry}"
            findings.append(Finding(True, Proof.LOG, f"{words} as number {each.index}"))
    return findings + (_alone(file) if findings and all(each.good for each in findings) else [])


def _values(head: ProofHead) -> tuple[int, int, bytes, bytes]:
    return head.entry, head.at_ms, head.hash, head.signature


def _alone(file: ProofFile) -> list[Finding]:
    """Was there another ledger of this device meanwhile? The hub counts the epochs it has seen of each device."""
    counts = {each.entry: each.epochs for each in file.witnesses}
    first = counts.get(file.start.entry) if file.start else 1
    last = counts.get(file.end.entry)
    if last is None or first is None:
        return []
    if first != last:
        return [Finding(False, Proof.LOG, "the device had another ledger in that time: this one is not all")]
    return [Finding(True, Proof.LOG, "no other ledger of this device was logged in between")]

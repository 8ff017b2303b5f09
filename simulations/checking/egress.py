"""Egress auditor: checks every frame that leaves a device against the policy's text, independently of the product.

Rule: a frame is opened and read as it leaves, lost ones too. Its content tells what class the sample really was,
whatever its label says. Only what the text forbids beyond doubt is reported: a rule with conditions other than the data
class is left to the product.
"""

import tomllib
from collections.abc import Iterable
from functools import cache
from hashlib import sha256
from typing import Any

import msgspec

from simulations.checking.bounds import Limits
from simulations.checking.events import Flaw, Key, Left
from simulations.checking.history import Judge
from wire.errors import RemoteError
from wire.protocol import codec
from wire.protocol.messages import DType, Escalation, Tensor

_MARK_BYTES = 14
_SILENT = frozenset(("local_only", "disabled"))


@cache
def content(data_class: str, label: int = 0) -> Tensor:
    """Tensor that stands for a sample of this class.

    Its second byte is the label that the hub's model gives, the rest marks the class.
    """
    return Tensor(DType.UINT8, (2 + _MARK_BYTES,), bytes((0, label % 256)) + _mark(data_class))


@cache
def _mark(data_class: str) -> bytes:
    return sha256(data_class.encode()).digest()[:_MARK_BYTES]


class Text(msgspec.Struct, frozen=True):
    """What a policy's text permits: names of fields and hubs, and of each data class that may leave."""

    fields: frozenset[str]
    classes: dict[bytes, str]  # by the mark of their samples
    hubs: frozenset[str]
    regions: frozenset[str]
    silent: bool
    limits: Limits
    narrowed: dict[str, "Text"] = {}  # by data class: where a rule says less


def read(text: str) -> Text:
    """Read what a policy's text permits. KeyError or TypeError for a text that is no policy."""
    document = tomllib.loads(text)
    base = _base(document)
    rules = [rule for rule in document.get("rule", []) if _is_plain(rule)]
    narrowed = {name: _narrowed(base, name, rules) for name in base.classes.values()}
    return msgspec.structs.replace(base, narrowed=narrowed)


def _base(document: dict[str, Any]) -> Text:
    egress, budget = document["egress"], document.get("budget", {})
    return Text(
        fields=frozenset(field["name"] for field in egress["field"]),
        classes={_mark(name): name for name, leaves in egress["data_class"].items() if leaves},
        hubs=frozenset(document["locality"]["hubs"]),
        regions=frozenset(document["locality"]["regions"]),
        silent=document["escalation"]["mode"] in _SILENT,
        limits=Limits(budget.get("bytes_per_day"), budget.get("max_open")),
    )


def _is_plain(rule: dict[str, Any]) -> bool:
    """Whether a rule has no condition but the data class: then it certainly applies, or certainly not."""
    return set(rule.get("when", {})) <= {"data_class"} and "unless" not in rule


def _narrowed(base: Text, data_class: str, rules: list[dict[str, Any]]) -> Text:
    for rule in rules:
        if data_class in rule.get("when", {}).get("data_class", [data_class]):
            base = msgspec.structs.replace(
                base,
                fields=base.fields & set(rule.get("fields", base.fields)),
                hubs=base.hubs & set(rule.get("hubs", base.hubs)),
                regions=base.regions & set(rule.get("regions", base.regions)),
                silent=base.silent or rule.get("deny", False) or rule.get("mode") in _SILENT,
            )
    return base


class Customs:
    """Auditor of all devices of a region. `looked`: frames seen; `liars`: devices that send what they like."""

    def __init__(self, judge: Judge, text: str) -> None:
        self.looked = 0
        self.liars: set[str] = set()  # send what they like; nothing of it can be read as a question
        self._judge = judge
        self._texts: dict[str, Text] = {}
        self._of_one: dict[str, Text] = {}
        self._of_all = self._read(text)
        judge.bounds.use(self._of_all.limits, 0.0)

    def use(self, text: str, now_s: float = 0.0, devices: Iterable[str] | None = None) -> None:
        """Put a policy into force from now on; `devices` None = on all."""
        read_one = self._read(text)
        names = None if devices is None else tuple(devices)
        self._judge.bounds.use(read_one.limits, now_s, names)
        if names is None:
            self._of_all = read_one
            self._of_one.clear()
        else:
            self._of_one.update(dict.fromkeys(names, read_one))

    def look(self, device: str, hub: str, region: str, frame: bytes) -> None:
        """Check a question that leaves this device for this hub."""
        self.looked += 1
        try:
            found = codec.split(frame)
            question = codec.decode_escalation(codec.unpad(found.body))
        except RemoteError as error:
            if device not in self.liars:
                self._judge.blame(Flaw.FORBIDDEN, f"{device} sends what cannot be read: {error.fault}")
            return
        key = Key(found.header.device, found.header.epoch, found.header.seq)
        self._judge.see(Left(key, hub))
        why = _forbidden(self._of_one.get(device, self._of_all), question, (hub, region))
        if found.header.device != device:
            why = f"it bears the name of {found.header.device}"
        if why:
            self._judge.blame(Flaw.FORBIDDEN, f"{key} on its way to {hub}: {why}")

    def _read(self, text: str) -> Text:
        known = self._texts.get(text)
        if known is None:
            known = self._texts[text] = read(text)
        return known


def _forbidden(text: Text, question: Escalation, to: tuple[str, str]) -> str:
    """Why a question may not leave; "" if nothing in the text forbids it."""
    hub, region = to
    for name, tensor in question.fields.items():
        really = text.classes.get(tensor.data[2:])
        if really is None:
            return f"field {name!r} holds a sample of a class that may not leave"
        holds = text.narrowed.get(really, text)
        if holds.silent:
            return f"nothing of class {really!r} may leave"
        if name not in holds.fields:
            return f"field {name!r} may not leave"
        if hub not in holds.hubs or region not in holds.regions:
            return f"class {really!r} may not go there"
    return "" if question.region == region else f"it was meant for region {question.region!r}"

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

from simulations.checking.bounds import PolicyLimits
from simulations.checking.events import Flaw, FrameSent, QuestionKey
from simulations.checking.history import HistoryChecker
from wire.errors import RemoteError
from wire.protocol import codec
from wire.protocol.messages import Escalation, Tensor, TensorDType

_MARK_BYTES = 14
_SILENT = frozenset(("local_only", "disabled"))


@cache
def make_sample_tensor(data_class: str, label: int = 0) -> Tensor:
    """Tensor that stands for a sample of this class.

    Its second byte is the label that the hub's model gives, the rest marks the class.
    """
    return Tensor(TensorDType.UINT8, (2 + _MARK_BYTES,), bytes((0, label % 256)) + _mark_class(data_class))


@cache
def _mark_class(data_class: str) -> bytes:
    return sha256(data_class.encode()).digest()[:_MARK_BYTES]


class PolicyText(msgspec.Struct, frozen=True):
    """What a policy's text permits: names of fields and hubs, and of each data class that may leave."""

    fields: frozenset[str]
    classes: dict[bytes, str]  # by the mark of their samples
    hubs: frozenset[str]
    regions: frozenset[str]
    silent: bool
    limits: PolicyLimits
    narrowed: dict[str, "PolicyText"] = {}  # by data class: where a rule says less


def read_policy_text(text: str) -> PolicyText:
    """Read what a policy's text permits. KeyError or TypeError for a text that is no policy."""
    document = tomllib.loads(text)
    base = _read_base(document)
    rules = [rule for rule in document.get("rule", []) if _is_plain(rule)]
    narrowed = {name: _narrow_by_rules(base, name, rules) for name in base.classes.values()}
    return msgspec.structs.replace(base, narrowed=narrowed)


def _read_base(document: dict[str, Any]) -> PolicyText:
    egress, budget = document["egress"], document.get("budget", {})
    return PolicyText(
        fields=frozenset(field["name"] for field in egress["field"]),
        classes={_mark_class(name): name for name, leaves in egress["data_class"].items() if leaves},
        hubs=frozenset(document["locality"]["hubs"]),
        regions=frozenset(document["locality"]["regions"]),
        silent=document["escalation"]["mode"] in _SILENT,
        limits=PolicyLimits(budget.get("bytes_per_day"), budget.get("max_open")),
    )


def _is_plain(rule: dict[str, Any]) -> bool:
    """Whether a rule has no condition but the data class: then it certainly applies, or certainly not."""
    return set(rule.get("when", {})) <= {"data_class"} and "unless" not in rule


def _narrow_by_rules(base: PolicyText, data_class: str, rules: list[dict[str, Any]]) -> PolicyText:
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


class EgressAuditor:
    """Auditor of all devices of a region. `looked`: frames seen; `liars`: devices that send what they like."""

    def __init__(self, judge: HistoryChecker, text: str) -> None:
        self.looked = 0
        self.liars: set[str] = set()  # send what they like; nothing of it can be read as a question
        self._judge = judge
        self._texts: dict[str, PolicyText] = {}
        self._of_one: dict[str, PolicyText] = {}
        self._of_all = self._read_cached(text)
        judge.bounds.set_limits(self._of_all.limits, 0.0)

    def set_policy(self, text: str, now_s: float = 0.0, devices: Iterable[str] | None = None) -> None:
        """Put a policy into force from now on; `devices` None = on all."""
        read_one = self._read_cached(text)
        names = None if devices is None else tuple(devices)
        self._judge.bounds.set_limits(read_one.limits, now_s, names)
        if names is None:
            self._of_all = read_one
            self._of_one.clear()
        else:
            self._of_one.update(dict.fromkeys(names, read_one))

    def inspect_frame(self, device: str, hub: str, region: str, frame: bytes) -> None:
        """Check a question that leaves this device for this hub."""
        self.looked += 1
        try:
            found = codec.split_frame(frame)
            question = codec.decode_escalation(codec.unpad_plaintext(found.body))
        except RemoteError as error:
            if device not in self.liars:
                self._judge.add_flaw(Flaw.FORBIDDEN, f"{device} sends what cannot be read: {error.fault}")
            return
        key = QuestionKey(found.header.device, found.header.epoch, found.header.seq)
        self._judge.on_event(FrameSent(key, hub))
        why = _find_violation(self._of_one.get(device, self._of_all), question, (hub, region))
        if found.header.device != device:
            why = f"it bears the name of {found.header.device}"
        if why:
            self._judge.add_flaw(Flaw.FORBIDDEN, f"{key} on its way to {hub}: {why}")

    def _read_cached(self, text: str) -> PolicyText:
        known = self._texts.get(text)
        if known is None:
            known = self._texts[text] = read_policy_text(text)
        return known


def _find_violation(text: PolicyText, question: Escalation, to: tuple[str, str]) -> str:
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

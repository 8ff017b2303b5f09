"""What `HubCore` says (commands), what the store tells it (rows), what is erased: frozen values, no behaviour."""

from math import inf
from typing import NamedTuple

import msgspec

from cloud_hub.engine.types import Work
from cloud_hub.registry.device_states import Device
from policies.serving.fair_queue import NORMAL
from wire.protocol.messages import DownNote, Heads, Prediction, Reason, Verdict
from wire.protocol.rollout import InstallReport
from wire.protocol.sealing import mark_of

LOCAL = ""  # the "device" of the hub's own web API; no topic can carry it


class Key(NamedTuple):
    """Names one question for ever. For a web request: (LOCAL, number of the request, index of the sample)."""

    device: str
    epoch: int
    seq: int


Stream = tuple[str, int]  # (device, epoch): within it seqs count up


class Item(msgspec.Struct, frozen=True, eq=False):
    """One question on its way through a batch. Compared by identity: a repeat of a key is another item.

    `band` of `policies.serving.fair_queue`; `deadline` in hub time, `hard` = after it nobody wants the answer; `tenant`
    and `flow` (its key) of a web request; a device's are in its name. `trace`: a traceparent, or ""; `about`: what it
    is called there; `created_s`: when it was sealed, in hub time.
    """

    key: Key
    work: Work
    arrived_s: float
    band: int = NORMAL
    weight: float = 1.0
    deadline: float = inf
    hard: bool = False
    tenant: str = ""
    flow: str = ""
    trace: str = ""
    about: str = ""
    created_s: float = 0.0


class Question(msgspec.Struct, frozen=True):
    """The row that makes a question owed: `sealed` is the frame as it came, `fingerprint` the hash of what is in it."""

    key: Key
    model: str
    policy: str
    created_ms: int
    kept_ms: int
    digest: bytes
    fingerprint: bytes
    sealed: bytes
    keep_until_ms: int = 0  # then nothing of it is kept but its key and hashes
    subject: bytes = b""  # keyed hash of whom it is about


class Ending(msgspec.Struct, frozen=True):
    """How a question ended: `verdict` is the frame sealed to its device, or `refusal` says why there is none."""

    key: Key
    ended_ms: int
    verdict: bytes | None = None
    refusal: Reason | None = None
    label: int = -1  # of the verdict, for the day's counts; -1 = it is not counted
    model: str = ""


class Row(msgspec.Struct, frozen=True):
    """A question as the store remembers it. Neither verdict nor refusal: it is still owed."""

    key: Key
    digest: bytes
    fingerprint: bytes
    verdict: bytes | None = None
    refusal: Reason | None = None


class Keep(msgspec.Struct, frozen=True):
    """Store durably, then `on_kept`."""

    question: Question


class Judged(msgspec.Struct, frozen=True):
    """Seal this verdict to the device, bound to its question, then treat the ending as `End`."""

    key: Key
    device: Device
    verdict: Verdict
    binding: bytes


class End(msgspec.Struct, frozen=True):
    """Store the ending and delete the sealed bytes in one transaction, then `on_ended`."""

    ending: Ending


class Forget(msgspec.Struct, frozen=True):
    """Delete every trace: the device will send it again."""

    key: Key


class Find(msgspec.Struct, frozen=True):
    """Read these keys and the highest seq of each stream, then `on_found` with the same ticket."""

    ticket: int
    keys: tuple[Key, ...]
    streams: tuple[Stream, ...] = ()


class Prune(msgspec.Struct, frozen=True):
    """Delete rows stored before this time, and verdicts that may not be kept longer than now (hub time, ms)."""

    before_ms: int
    now_ms: int = 0


class Log(msgspec.Struct, frozen=True):
    """Put a device's ledger head into the log, then answer it. `key`: the raw Ed25519 key that signed it."""

    device: str
    key: bytes
    heads: Heads


class Reported(msgspec.Struct, frozen=True):
    """Keep how an assignment fares on a device, then answer with `ReportSeen`."""

    device: str
    report: InstallReport


class Greeted(msgspec.Struct, frozen=True):
    """A device is there: say again what is assigned to it."""

    device: str


class Erase(msgspec.Struct, frozen=True):
    """Forget what this device sent of this subject (its keyed hash) up to `before_ms`; `at_ms`: hub time of now."""

    device: str
    subject: bytes
    before_ms: int
    at_ms: int

    @property
    def mark(self) -> bytes:
        return mark_of(self.device, self.subject)


class Tombstone(msgspec.Struct, frozen=True):
    """That it was done. `mark` names the subject to who knows its keyed hash already, and to nobody else."""

    device: str
    mark: bytes
    before_ms: int
    rows: int
    at_ms: int


class Infer(msgspec.Struct, frozen=True):
    """Run a batch on the engine `model`, then `on_results` or `on_engine_failed`."""

    ticket: int
    model: str
    items: tuple[Item, ...]


class Check(msgspec.Struct, frozen=True):
    """Run the engine's own sample, then `on_checked`: it tells a poisoned question from a broken engine."""

    model: str


class Load(msgspec.Struct, frozen=True):
    """Make the model's engine and warm it up, then `on_loaded`."""

    model: str


class Unload(msgspec.Struct, frozen=True):
    """Nothing waits for the model's engine any more: give it back."""

    model: str


class Tell(msgspec.Struct, frozen=True):
    """Sign a note and send it."""

    device: str
    note: DownNote


class Resend(msgspec.Struct, frozen=True):
    """Send a frame that was sealed before."""

    device: str
    frame: bytes


class Suspect(msgspec.Struct, frozen=True):
    """Two machines speak with this device's keys: suspend it in the registry, which suspends both."""

    device: str


class Hand(msgspec.Struct, frozen=True):
    """Give a web request its answer, or the reason why there is none."""

    key: Key
    result: Prediction | Reason


Command = (
    Keep | Judged | End | Forget | Find | Prune | Infer | Check | Load | Unload | Tell | Resend | Suspect | Hand | Log
    | Reported | Greeted
)  # fmt: skip

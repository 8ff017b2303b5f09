"""What `HubCore` says (commands) and what the store tells it (rows): frozen values, no behaviour."""

from typing import NamedTuple

import msgspec

from cloud_hub.devices import Device
from cloud_hub.work import Work
from wire.messages import DownNote, Prediction, Reason, Verdict

LOCAL = ""  # the "device" of the hub's own web API; no topic can carry it


class Key(NamedTuple):
    """Names one question for ever. For a web request: (LOCAL, number of the request, index of the sample)."""

    device: str
    epoch: int
    seq: int


Stream = tuple[str, int]  # (device, epoch): within it seqs count up


class Item(msgspec.Struct, frozen=True, eq=False):
    """One question on its way through a batch. Compared by identity: a repeat of a key is another item."""

    key: Key
    work: Work
    arrived_s: float


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


class Ending(msgspec.Struct, frozen=True):
    """How a question ended: `verdict` is the frame sealed to its device, or `refusal` says why there is none."""

    key: Key
    ended_ms: int
    verdict: bytes | None = None
    refusal: Reason | None = None


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
    """Delete rows stored before this time (hub time, ms)."""

    before_ms: int


class Infer(msgspec.Struct, frozen=True):
    """Run a batch on the engine `model`, then `on_results` or `on_engine_failed`."""

    ticket: int
    model: str
    items: tuple[Item, ...]


class Check(msgspec.Struct, frozen=True):
    """Run the engine's own sample, then `on_checked`: it tells a poisoned question from a broken engine."""

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


Command = Keep | Judged | End | Forget | Find | Prune | Infer | Check | Tell | Resend | Suspect | Hand

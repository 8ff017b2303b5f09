"""Commands that `HubCore` returns, and the rows it exchanges with the store: frozen values without behaviour. Pure."""

from math import inf
from typing import NamedTuple

import msgspec

from cloud_hub.engine.types import WorkItem
from cloud_hub.registry.device_states import Device
from policies.serving.fair_queue import NORMAL
from wire.protocol.messages import DownNote, LedgerHeadReport, Prediction, RefusalReason, TextUsage, Verdict
from wire.protocol.rollout import InstallReport
from wire.protocol.sealing import hash_subject_mark

LOCAL = ""  # the "device" of the hub's own web API; no topic can carry it


class QuestionKey(NamedTuple):
    """Key of a question, unique for ever: (device, epoch, seq).

    A sample of a web request has the key (LOCAL, number of the request, index of the sample).
    """

    device: str
    epoch: int
    seq: int


Stream = tuple[str, int]  # (device, epoch): within it seqs count up


class BatchItem(msgspec.Struct, frozen=True, eq=False):
    """One question or web sample in a batch queue, compared by identity: a repeat of a key is another item.

    `band`: priority of `policies.serving.fair_queue`. `deadline`: hub seconds; with `hard` nobody wants the answer
    after it. `tenant` and `flow`: of a web request only (a device's tenant is part of its name). `trace`: W3C
    traceparent or ""; `about`: the id of the question in that trace. `created_s`: when the device sealed it, hub
    seconds. `background`: nobody waits for it, and it delays nobody who does. `request_bytes`: of the web request, at
    its first sample, for the bill.
    """

    key: QuestionKey
    work: WorkItem
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
    background: bool = False
    request_bytes: int = 0


class StoredQuestion(msgspec.Struct, frozen=True):
    """Store row of an accepted question, kept until it ends: the hub owes a verdict or a refusal for it.

    `sealed`: the frame as received; `digest`: its hash; `fingerprint`: hash of the padded plaintext. Times in hub
    milliseconds.
    """

    key: QuestionKey
    model: str
    policy: str
    created_ms: int
    kept_ms: int
    digest: bytes
    fingerprint: bytes
    sealed: bytes
    keep_until_ms: int = 0  # then nothing of it is kept but its key and hashes
    subject: bytes = b""  # keyed hash of whom it is about


class QuestionEnding(msgspec.Struct, frozen=True):
    """Final result of a question.

    `verdict` is the frame sealed to its device, or `refusal` the reason why there is none.
    """

    key: QuestionKey
    ended_ms: int
    verdict: bytes | None = None
    refusal: RefusalReason | None = None
    label: int = -1  # of the verdict, for the day's counts; -1 = it is not counted
    model: str = ""
    # of a verdict, for the bill: where it was computed, its share of its batch's time, its question's frame
    region: str = ""
    engine_us: int = 0
    question_bytes: int = 0
    usage: TextUsage | None = None  # of a text: its language model and its tokens


class QuestionRow(msgspec.Struct, frozen=True):
    """A question as the store returns it. With neither `verdict` nor `refusal` it is still to be answered."""

    key: QuestionKey
    digest: bytes
    fingerprint: bytes
    verdict: bytes | None = None
    refusal: RefusalReason | None = None


class StoreQuestion(msgspec.Struct, frozen=True):
    """Command: store the question durably, then call `HubCore.on_stored`."""

    question: StoredQuestion


class SealVerdict(msgspec.Struct, frozen=True):
    """Command: seal this verdict to the device, bound to its question by `binding`, stored like `StoreEnding`.

    `engine_s`: its share of the seconds of its batch; `question_bytes`: size of the question's frame.
    """

    key: QuestionKey
    device: Device
    verdict: Verdict
    binding: bytes
    engine_s: float
    question_bytes: int


class StoreEnding(msgspec.Struct, frozen=True):
    """Command: store the ending and delete the sealed question in one transaction, then call `HubCore.on_ended`."""

    ending: QuestionEnding


class DeleteQuestion(msgspec.Struct, frozen=True):
    """Command: delete every trace of the question; the device will send it again."""

    key: QuestionKey


class LookUpQuestions(msgspec.Struct, frozen=True):
    """Command: read these keys and the highest seq of each stream, then call `HubCore.on_found` with this command.

    `ticket` says who waits: `QUESTION_TICKET` for questions, else a `StatusRequest`.
    """

    ticket: int
    keys: tuple[QuestionKey, ...]
    streams: tuple[Stream, ...] = ()


class PruneRows(msgspec.Struct, frozen=True):
    """Command: delete rows stored before `before_ms`, and verdicts whose retention has ended by `now_ms` (hub ms)."""

    before_ms: int
    now_ms: int = 0


class LogLedgerHead(msgspec.Struct, frozen=True):
    """Command: append a device's ledger head to the transparency log, then answer it.

    `key`: the raw Ed25519 key it verified with.
    """

    device: str
    key: bytes
    heads: LedgerHeadReport


class RecordInstallReport(msgspec.Struct, frozen=True):
    """Command: record the device's report on its assigned install, then answer with `ReportReceipt`."""

    device: str
    report: InstallReport


class ResendAssignments(msgspec.Struct, frozen=True):
    """Command: the device said Hello; send its current assignment again."""

    device: str


class ErasureRequest(msgspec.Struct, frozen=True):
    """Request to erase what this device sent about a subject up to `before_ms`.

    `subject`: the device's keyed hash of the person; `at_ms`: hub time of the request. Both times in milliseconds.
    `questions`: further questions of the device, named by their keys.
    """

    device: str
    subject: bytes
    before_ms: int
    at_ms: int
    questions: tuple[QuestionKey, ...] = ()

    @property
    def mark(self) -> bytes:
        """Hash of device and subject under which the erasure is remembered."""
        return hash_subject_mark(self.device, self.subject)


class Tombstone(msgspec.Struct, frozen=True):
    """Record of an erasure that was carried out: `rows` were deleted at `at_ms`.

    `mark` identifies the subject only to a party that already has the subject's keyed hash.
    """

    device: str
    mark: bytes
    before_ms: int
    rows: int
    at_ms: int


class Erasure(msgspec.Struct, frozen=True):
    """Result of an `ErasureRequest`. `keys`: questions that still held anything, and hold nothing now.

    `named`: how many questions the request named.
    """

    keys: tuple[QuestionKey, ...]
    named: int
    stone: Tombstone


class RunBatch(msgspec.Struct, frozen=True):
    """Command: run a batch on the engine of `model`, then call `HubCore.on_results` or `on_engine_failed`."""

    ticket: int
    model: str
    items: tuple[BatchItem, ...]


class CheckEngine(msgspec.Struct, frozen=True):
    """Command: run the engine's self test, then call `HubCore.on_checked`.

    It tells a poisoned input from a broken engine.
    """

    model: str


class LoadModel(msgspec.Struct, frozen=True):
    """Command: start the model's engine and warm it up, then call `ModelLineup.on_loaded`."""

    model: str


class UnloadModel(msgspec.Struct, frozen=True):
    """Command: stop the model's engine; nothing waits for it any more."""

    model: str


class SetReplicas(msgspec.Struct, frozen=True):
    """Command: run so many replicas of a loaded model; `ModelLineup.on_replicas` is told when the number changes."""

    model: str
    count: int


class SendNote(msgspec.Struct, frozen=True):
    """Command: sign a note and send it to the device."""

    device: str
    note: DownNote


class SendFrame(msgspec.Struct, frozen=True):
    """Command: send a frame that was sealed before."""

    device: str
    frame: bytes


class SuspendDevice(msgspec.Struct, frozen=True):
    """Command: suspend the device in the registry, because two machines seem to use its keys.

    Both machines lose access, since they cannot be told apart.
    """

    device: str


class AnswerWebSample(msgspec.Struct, frozen=True):
    """Command: answer one sample of a web request with a prediction, or with the reason why there is none."""

    key: QuestionKey
    result: Prediction | RefusalReason


Command = (
    StoreQuestion | SealVerdict | StoreEnding | DeleteQuestion | LookUpQuestions | PruneRows | RunBatch | CheckEngine
    | LoadModel | UnloadModel | SetReplicas | SendNote | SendFrame | SuspendDevice | AnswerWebSample | LogLedgerHead
    | RecordInstallReport | ResendAssignments
)  # fmt: skip

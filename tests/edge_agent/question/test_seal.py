"""A stored question: when it is sealed again, and how it is taken up at the start."""

import pytest
from msgspec.structs import replace

from edge_agent.question.commands import OutboxState, QuestionLabels, Store, StoredQuestion
from edge_agent.question.records import SampleOrigin
from edge_agent.question.seal import Envelopes, EscalationSealer, EscalationSource, ModelFormat
from edge_agent.storage.outbox import OutboxRow, PayloadVault, StoredPayload
from models.bundle.manifest import Manifest
from models.runtime.feature_codec import open_codec
from models.runtime.runner import Inference, echo_manifest
from policies.decisions.budget import BudgetSpend
from policies.decisions.egress import EgressPlan
from policies.decisions.permit import Permit
from policies.decisions.routing import HubSite
from tests.edge_agent.doubles.hub_double import HUB_TIME_MS, TRUTH, HubDouble, ManualClock
from wire.protocol.codec import decode_escalation, pad_plaintext, unpad_plaintext
from wire.protocol.messages import Escalation, Prediction, SensitivityLevel

NOTHING = EgressPlan((), "", SensitivityLevel.P2, fixed_size=False)


class Device:
    """Sealer of one device, and one question in its outbox."""

    def __init__(self) -> None:
        self.time, vault, envelopes = ManualClock(), PayloadVault(b"p" * 32), Envelopes(HubDouble().identity())
        self.sealer = EscalationSealer(envelopes, vault, self.time.hub_clock(), None, max_age_s=1e6)  # type: ignore[arg-type]
        padded = pad_plaintext(b"a question")
        sealed = envelopes.seal_question(7, 1, self.time.wall, "hub-1", padded)
        self.row = OutboxRow(
            seq=1, epoch=7, id="1", state=OutboxState.SEALED, created_ms=self.time.wall, policy="p",
            expires_ms=2 * HUB_TIME_MS, jitter=0.0, model="m@1", data_class="", hub="hub-1", region="local",
            egress=NOTHING, fingerprint=sealed.fingerprint, digest=sealed.digest, key_id=sealed.key_id, size=1,
            charge=1, payload=vault.encrypt(7, 1, StoredPayload(padded, TRUTH, "")),
        )  # fmt: skip


def test_a_question_is_sealed_again_for_a_new_key_or_after_a_clock_that_went_back_and_else_left_as_it_is() -> None:
    device = Device()
    time, sealer, row = device.time, device.sealer, device.row
    assert sealer.reseal_row(row) is None, "same key, same time"
    time.advance(60)
    assert sealer.reseal_row(row) is None, "same key, later"
    assert sealer.reseal_row(replace(row, hub="hub-9")) is None, "no keys of that hub"
    retired = sealer.reseal_row(replace(row, key_id=b"8 bytes."))
    assert retired is not None, "another key, later"
    assert retired[0].key_id == row.key_id
    later = replace(row, created_ms=time.wall + 60_000)
    assert sealer.reseal_row(later) is not None, "same key, earlier: what the hub took it for is of the future"


def test_a_stored_question_is_taken_up_with_its_times_on_the_clock_of_this_run() -> None:
    device = Device()
    taken, _ = device.sealer.restore_row(device.row)
    assert (taken.not_before, taken.expires) == (0.0, device.time.mono_s + HUB_TIME_MS / 1000)
    taken, _ = device.sealer.restore_row(replace(device.row, not_before_ms=HUB_TIME_MS + 5000))
    assert taken.not_before == device.time.mono_s + 5


@pytest.mark.parametrize(("answered", "state"), [(False, OutboxState.SEALED), (True, OutboxState.RECEIPTED)])
def test_a_stored_question_is_taken_up_whole(answered: bool, state: OutboxState) -> None:
    device = Device()
    payload = PayloadVault(b"p" * 32).encrypt(7, 1, StoredPayload(pad_plaintext(b"a question"), TRUTH, "a trace"))
    row = replace(
        device.row, answered=answered, state=state, attempts=3, jitter=0.75, charge=900, size=700, policy="rules",
        data_class="faces", region="north", subject=b"s" * 16, payload=payload,
    )  # fmt: skip
    taken, origin = device.sealer.restore_row(row)
    assert taken == StoredQuestion(
        seq=1, id="1", state=state, local=TRUTH, answered=answered, policy="rules", data_class="faces",
        egress=NOTHING, target=HubSite("hub-1", "north"), digest=row.digest, size=900,
        expires=device.time.mono_s + HUB_TIME_MS / 1000, not_before=0.0, attempts=3, jitter=0.75,
    )  # fmt: skip
    assert origin == SampleOrigin("a trace", subject=b"s" * 16)


def test_a_stored_question_whose_key_is_gone_is_taken_up_without_what_only_the_key_opens() -> None:
    device = Device()
    taken, origin = device.sealer.restore_row(replace(device.row, payload=b"sealed by another key", subject=b"s" * 16))
    assert taken.local == Prediction(-1, 0.0, (), "")
    assert (taken.digest, taken.id) == (device.row.digest, "1")
    assert origin == SampleOrigin("", subject=b"s" * 16)


def form_of(manifest: Manifest) -> ModelFormat:
    return ModelFormat(manifest, open_codec(manifest, lambda _: b""))


class Given:
    """A question about to be stored, each of its facts another."""

    def __init__(self, *, fixed_size: bool, names_subject: bool, padded_bytes: int = 0) -> None:
        plan = replace(NOTHING, fixed_size=fixed_size)
        permit = Permit("rules", (HubSite("hub-1", "north"), HubSite("hub-2", "south")), plan, BudgetSpend(), terms="t")
        self.store = Store(
            seq=4, id="an id", permit=permit, charge_bytes=900, local=TRUTH, data_class="faces", budget_s=1.5,
            audit=True, jitter=0.75, labels=QuestionLabels("a+b", 3, ("f" * 64,), padded_bytes, subject=names_subject),
        )  # fmt: skip
        self.origin = SampleOrigin("a trace", subject=b"s" * 16)
        self.device = Device()
        self.sealer = self.device.sealer

    def prepare(self, *, own: Manifest, other: Manifest | None = None) -> tuple[OutboxRow, Escalation, bytes]:
        """The row, and its plaintext read back."""
        self.sealer.set_format(form_of(own))
        form = form_of(other) if other else None
        source = EscalationSource(Inference(TRUTH, {}), self.origin, form)
        row, sealed = self.sealer.prepare_row(self.store, source, epoch=7)
        assert (row.fingerprint, row.digest, row.key_id) == (sealed.fingerprint, sealed.digest, sealed.key_id)
        assert row.size == len(sealed.frame)
        kept = PayloadVault(b"p" * 32).decrypt(7, 4, row.payload)
        assert (kept.local, kept.trace) == (TRUTH, "a trace")
        return row, decode_escalation(unpad_plaintext(kept.padded)), kept.padded


@pytest.mark.parametrize("names_subject", [False, True])
def test_a_new_question_is_stored_and_sealed_with_just_what_it_was_permitted_with(names_subject: bool) -> None:
    given = Given(fixed_size=True, names_subject=names_subject)
    manifest = echo_manifest(2)
    row, asked, padded = given.prepare(own=manifest)
    now_ms = given.device.time.hub_clock().hub_ms()
    assert row == replace(
        row, seq=4, epoch=7, id="an id", state=OutboxState.SEALED, created_ms=now_ms, expires_ms=now_ms + 10**9,
        jitter=0.75, policy="rules", model=manifest.model, data_class="faces", hub="hub-1", region="north",
        egress=given.store.permit.egress, charge=900, subject=b"s" * 16, answered=False, attempts=0,
    )  # fmt: skip
    assert asked == Escalation(
        id="an id", model=manifest.ref, policy="rules", region="north", fields={}, budget_s=1.5, audit=True,
        trace="a trace", rule="a+b", data_class="faces", subject=b"s" * 16 if names_subject else b"", keep_days=3,
        layers=("f" * 64,),
    )  # fmt: skip
    assert len(padded) == manifest.fixed_bytes


def test_a_question_is_as_long_as_the_longest_that_any_rule_permits() -> None:
    manifest = echo_manifest(2)
    wide = Given(fixed_size=True, names_subject=True, padded_bytes=manifest.fixed_bytes + 512)
    assert len(wide.prepare(own=manifest)[2]) == manifest.fixed_bytes + 512
    narrow = Given(fixed_size=True, names_subject=True, padded_bytes=1)
    assert len(narrow.prepare(own=manifest)[2]) == manifest.fixed_bytes
    free = Given(fixed_size=False, names_subject=True)
    assert len(free.prepare(own=manifest)[2]) < manifest.fixed_bytes


def test_features_of_another_model_than_the_one_that_answers_name_that_model() -> None:
    own, other = echo_manifest(2), echo_manifest(2, version=9)
    row, asked, _ = Given(fixed_size=True, names_subject=True).prepare(own=own, other=other)
    assert (row.model, asked.model) == (other.model, other.ref)

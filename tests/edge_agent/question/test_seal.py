"""A stored question: when it is sealed again, and how it is taken up at the start."""

from msgspec.structs import replace

from edge_agent.question.commands import OutboxState
from edge_agent.question.seal import Envelopes, EscalationSealer
from edge_agent.storage.outbox import OutboxRow, PayloadVault, StoredPayload
from policies.decisions.egress import EgressPlan
from tests.edge_agent.doubles.hub_double import HUB_TIME_MS, TRUTH, HubDouble, ManualClock
from wire.protocol.codec import pad_plaintext
from wire.protocol.messages import SensitivityLevel

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

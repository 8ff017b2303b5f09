"""Sample values never appear in logs, metrics, errors or the unencrypted columns of the outbox."""

import json
from pathlib import Path

import numpy as np
import pytest

from edge_agent.app.agent import Agent
from edge_agent.storage.outbox import PayloadError, PayloadVault, StoredPayload
from models.runtime.runner import EchoRunner, SampleError
from tests.edge_agent.doubles.hub_double import AgentRig, HubDouble, policy, sample, settings, until
from wire.protocol.messages import Prediction

CANARY = b"CANARY-7f3a"  # as bytes of samples, as text of names


def canary_sample() -> np.ndarray:
    """Eight scores whose feature codes spell the canary's first bytes when packed."""
    nibbles = [n for byte in CANARY[:4] for n in (byte >> 4, byte & 15)]
    return np.array(nibbles, np.float32) / 15


async def test_canaries_in_inputs_are_never_found_outside(tmp_path: Path, capsys):
    hub = HubDouble(receipts=False, verdicts=False)
    rules = policy(mode="hub_first", budget_s=0.05)
    rig = AgentRig(tmp_path, rules, hub)
    rig.agent = Agent(settings(tmp_path), hub.identity(), EchoRunner(8), rules, hub.connect)
    async with rig:
        await rig.agent.infer(sample(canary_sample(), trace=CANARY.decode()))
        await rig.agent.infer(sample(canary_sample(), data_class=CANARY.decode()))
        with pytest.raises(SampleError) as error:
            rig.agent.answer_now(sample(np.frombuffer(CANARY, np.uint8)))
        rig.agent.on_batch([type("Message", (), {"payload": CANARY})()])  # a message that is none
        rig.agent.on_batch([type("Message", (), {"payload": None})()])  # a defect, logged
        await until(lambda: hub.questions)
        # it did reach the hub: the test has power
        assert CANARY[:4] in bytes(hub.questions[0][2].fields["features"].data)
        outside = [json.dumps(rig.agent.counts), json.dumps(rig.agent.status()), str(error.value)]
        outbox = await rig.agent._db.read(lambda db: db.execute("select * from outbox").fetchall())
    captured = capsys.readouterr()
    outside += [captured.out, captured.err]
    assert "handler_failed" in captured.err
    for text in outside:
        assert CANARY.decode() not in text
        assert CANARY.hex() not in text
    assert len(outbox) == 1
    for value in outbox[0]:
        data = value if isinstance(value, bytes) else str(value).encode()
        assert CANARY not in data
        assert CANARY[:4] not in data


def test_a_payload_opens_in_its_own_row_with_its_own_key_and_unaltered():
    vault = PayloadVault(b"a" * 32)
    kept = StoredPayload(b"plain" * 10, Prediction(1, 0.5, (0.5, 0.5), "m@1"), "trace")
    closed = vault.encrypt(1, 2, kept)
    assert vault.decrypt(1, 2, closed) == kept
    assert b"plain" not in closed
    for epoch, seq, data, key in (
        (1, 3, closed, b"a"), (2, 2, closed, b"a"), (1, 2, closed, b"b"), (1, 2, closed[:-1], b"a"), (1, 2, b"", b"a"),
        (1, 2, bytes((closed[0] ^ 1,)) + closed[1:], b"a"),
    ):  # fmt: skip
        with pytest.raises(PayloadError):
            PayloadVault(key * 32).decrypt(epoch, seq, data)

"""Samples unlike what the model knows, against a real broker, a hub and devices: flagged, asked, rejected."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from models.bundle.bundle import Bundle
from models.bundle.measurements import DomainFigures, DomainScore
from models.bundle.version import rewrite_version
from simulations.processes import ProcessHarness
from tests.live.doubles.fleet import QUICK, ask, judged, policy, settle, the_hub_answers

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]


def with_threshold(bundle: Bundle, folder: Path) -> Bundle:
    """The demo's bundle with a threshold of novelty that every sample is above, and one that no verdict is above."""
    edge = DomainFigures(DomainScore.NOVELTY, -1.0, 0.05, 0.0, 0.0, 1.0, 0)
    hub = DomainFigures(DomainScore.ENERGY, 1e9, 0.05, 0.0, 0.0, 1.0, 0)
    gate = msgspec.structs.replace(bundle.manifest.gate, domain=edge, hub_domain=hub)
    return rewrite_version(bundle, msgspec.structs.replace(bundle.manifest, gate=gate), folder)


async def test_a_sample_out_of_domain_is_flagged_asked_or_rejected_as_the_policy_says(
    stage: ProcessHarness, bundle: Bundle, tmp_path: Path
):
    assert bundle.manifest.gate.novelty_output
    strange = with_threshold(bundle, tmp_path / "strange")
    await stage.start_hub(strange.path)
    agents = {}
    for action in ("flag", "ask", "reject"):
        (tmp_path / action).mkdir()
        written = policy(tmp_path / action, "wait", 60.0)
        words = written.read_text().replace("threshold = 0.9", f'threshold = 0.0\nnovel = "{action}"')
        written.write_text(words)
        agents[action] = await stage.add_agent(action, strange.path, written, QUICK)
        await stage.start_agent(agents[action])
    sample = np.zeros(strange.manifest.input.shape, np.float32)
    assert await the_hub_answers(stage, agents["ask"], strange)
    flagged, asked, rejected = [await ask(stage, agents[action], strange, sample) for action in agents]
    assert (flagged["source"], flagged["reason"], flagged["in_domain"]) == ("local", "confident", "false")
    assert (asked["source"], asked["reason"], asked["in_domain"]) == ("hub", "verdict", "true")
    assert (rejected["source"], rejected["reason"], rejected["in_domain"]) == ("local", "out_of_domain", "false")
    assert (flagged["escalation_id"], rejected["escalation_id"]) == ("", "")
    await settle(stage)
    report = judged(stage)
    assert (report.lost, report.doubled) == (0, 0), report.format_text()

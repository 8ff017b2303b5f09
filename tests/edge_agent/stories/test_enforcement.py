"""Policy enforcement on a running agent: rules, accounts, noise, notices, and tampering with stored spending."""

import shutil
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from edge_agent.app.agent import DATABASE_FILE
from edge_agent.question.commands import CoreSetup
from edge_agent.question.permissions import ClassPermissions
from edge_agent.question.records import AnswerSource
from edge_agent.storage import accounts
from edge_agent.storage.schema import MARKER_FILE
from edge_agent.system.energy import STATED_LINKS, EnergySettings, LinkKind
from edge_agent.system.environment import DeviceAttributes
from models.runtime.feature_codec import build_codec
from models.runtime.runner import EchoRunner
from policies.decisions import egress
from policies.language.document import parse_policy
from policies.model import differential_privacy
from policies.model.policy import Policy
from policies.model.reasons import DecisionReason
from tests.edge_agent.doubles.hub_double import (
    DEFAULTS,
    HUB_TIME_MS,
    POLICY,
    AgentRig,
    HubDouble,
    sample,
    until,
)
from wire.protocol.messages import DenyAllNotice, LedgerHeadReport, SpendMirror
from wire.protocol.rollout import Assignment
from wire.protocol.topics import TopicChannel

DP = """
[dp]
unit = "device"
clip_norm = 4.0
sigma = 5.0
delta = 1e-6
epsilon = 8.0
"""
MEASURED = EchoRunner(2).manifest


def ruled(more: str = "", **changes: object) -> Policy:
    return parse_policy(POLICY.format(**{**DEFAULTS, "mode": "wait", **changes}) + more).compile()


def folder(parent: Path, name: str) -> Path:
    made = parent / name
    made.mkdir()
    return made


def order(hub: HubDouble, note: DenyAllNotice | Assignment, channel: TopicChannel = TopicChannel.DESIRED) -> None:
    hub.send_order(hub.sign_order(note, channel))


@dataclass
class Remembers(HubDouble):
    """Keeps the greatest totals that the device ever reported, as a hub does."""

    held: dict[tuple[str, int], int] = field(default_factory=dict)

    def on_heads(self, heads: LedgerHeadReport) -> None:
        for key, period, amount in heads.spend:
            self.held[key, period] = max(self.held.get((key, period), 0), amount)
        self.send_note(
            SpendMirror(heads.epoch, tuple((key, period, amount) for (key, period), amount in self.held.items()))
        )


# Rules and their moment


async def test_a_rule_that_asks_what_the_device_does_not_know_of_itself_applies(tmp_path: Path):
    rules = ruled('[[rule]]\nname = "ward"\nwhen = { device_class = ["ward"] }\ndeny = true\n')
    async with AgentRig(tmp_path, rules) as rig:
        assert (await rig.agent.infer(sample())).why is DecisionReason.DENIED_RULE
    known = DeviceAttributes(device_class="lab")
    async with AgentRig(folder(tmp_path, "known"), rules, attributes=known) as rig:
        assert (await rig.agent.infer(sample())).source is AnswerSource.HUB
        assert rig.hub.questions[0][2].rule == ""


async def test_what_leaves_names_the_rules_that_applied_and_how_long_it_may_be_kept(tmp_path: Path):
    rules = ruled('[[rule]]\nname = "open-ward"\nwhen = { data_class = ["open"] }\naudit_share = 0.0\n')
    async with AgentRig(tmp_path, rules) as rig:
        await rig.agent.infer(sample())
        question = rig.hub.questions[0][2]
        assert (question.rule, question.data_class, question.keep_days) == ("open-ward", "open", 7)


async def test_a_day_of_joules_pays_for_so_many_questions_and_the_rest_is_answered_here(tmp_path: Path):
    rules = ruled(bytes_per_day="100000000\njoules_per_day = 30")
    lte = EnergySettings(link=STATED_LINKS[LinkKind.LTE], meters=())
    async with AgentRig(tmp_path, rules, energy=lte) as rig:
        given = [await rig.agent.infer(sample()) for _ in range(3)]
        assert [each.source for each in given] == [AnswerSource.HUB, AnswerSource.HUB, AnswerSource.LOCAL]
        assert given[2].why is DecisionReason.DENIED_BUDGET
        assert all(12.6 < each.energy_j < 12.7 for each in given[:2])
        assert 0 < given[2].energy_j < 6  # the processor alone: no message was sent
        status = rig.agent.status()
        assert status["energy"]["questions_j"] == (30_000 - status["budgets"]["energy"]["left"]) / 1000
        assert (await rig.agent.wait(given[0].id, 0.0))[0].energy_j == given[0].energy_j  # as the database has it


async def test_a_question_is_of_one_size_whatever_rule_applies(tmp_path: Path):
    more = "".join(
        f'[[rule]]\nname = "{"n" * 60}{n}"\nwhen = {{ data_class = ["open"], metered = true }}\naudit_share = 0.0\n'
        for n in range(9)
    )
    rules, sizes = ruled(more), set()
    for metered in (True, False):
        attributes = DeviceAttributes(metered=metered)
        async with AgentRig(folder(tmp_path, str(metered)), rules, attributes=attributes) as rig:
            assert (await rig.agent.infer(sample())).source is AnswerSource.HUB
            sizes.add(len(rig.hub.questions[0][1]))
            assert rig.agent.status()["spent_bytes"] >= len(rig.hub.questions[0][1])
    assert len(sizes) == 1


async def test_a_rule_that_begins_to_hold_stops_what_waits_and_takes_its_charge_back(tmp_path: Path):
    """Permission is checked again at every transmission, though the policy document is the same."""
    metered = tmp_path / "metered"
    metered.write_text("no")
    rules = ruled('[[rule]]\nname = "dear"\nwhen = { metered = true }\ndeny = true\n')
    hub = HubDouble()
    async with AgentRig(tmp_path, rules, hub, attributes=DeviceAttributes(metered_file=str(metered))) as rig:
        await rig.agent.infer(sample())
        spent = rig.agent.status()["spent_bytes"]
        hub.broker.kill()
        await until(lambda: rig.agent.status()["link"] == "down")
        record = await rig.agent.infer(sample())
        assert record.why is DecisionReason.LINK_DOWN
        metered.write_text("yes")
        rig.agent._guard.refresh_context(at_once=True)
        hub.broker.up = True
        await until(lambda: rig.agent.status()["open"] == 0)
        assert rig.event_count("outcome_denied") == 1
        assert len(hub.questions) == 1
        assert rig.agent.status()["spent_bytes"] == spent
        held = await rig.agent._db.read(accounts.read_spend)
        assert held.bytes == spent


# Accounts


async def test_a_rule_has_its_own_account_beside_the_base(tmp_path: Path):
    rules = ruled('[[rule]]\nname = "tight"\nwhen = { data_class = ["open"] }\nbytes_per_day = 1600\n')
    async with AgentRig(tmp_path, rules) as rig:
        answers = [await rig.agent.infer(sample()) for _ in range(4)]
        assert [a.why for a in answers] == [
            DecisionReason.VERDICT,
            DecisionReason.VERDICT,
            DecisionReason.DENIED_BUDGET,
            DecisionReason.DENIED_BUDGET,
        ]
        assert answers[-1].source is AnswerSource.LOCAL
        assert len(rig.hub.questions) == 2


async def test_another_process_that_spent_is_noticed_before_anything_is_sent(tmp_path: Path):
    """Two agents on one database: the second finds at its commit what the first has charged."""
    rules = ruled(bytes_per_day=1600)
    async with AgentRig(tmp_path, rules) as rig:
        day = rig.agent._clock.hub_day()
        await rig.agent._db.read(lambda db: db.execute("insert into accounts values('bytes',?,1500)", (day,)))
        record = await rig.agent.infer(sample())
        assert (record.why, record.source) == (DecisionReason.DENIED_BUDGET, AnswerSource.LOCAL)
        assert not rig.hub.questions
        await until(lambda: rig.agent.status()["spent_bytes"] == 1500)
        assert rig.agent.status()["disk"] == "ok"


async def test_a_lost_ledger_is_exhausted_until_the_hub_has_answered(tmp_path: Path):
    rules, hub = ruled(bytes_per_day=2000), Remembers()
    async with AgentRig(tmp_path, rules, hub) as rig:
        for _ in range(2):
            assert (await rig.agent.infer(sample())).source is AnswerSource.HUB
        spent = rig.agent.status()["spent_bytes"]
        hub.held = {("bytes", rig.agent._clock.hub_day()): spent}
    for name in (DATABASE_FILE, f"{DATABASE_FILE}-wal", f"{DATABASE_FILE}-shm"):
        (tmp_path / name).unlink(missing_ok=True)
    hub.broker.up = False
    async with AgentRig(tmp_path, rules, hub) as rig:
        record = await rig.agent.infer(sample())
        assert (record.why, record.source) == (DecisionReason.DENIED_BUDGET, AnswerSource.LOCAL)
        assert "ledger_lost" in rig.agent.status()["alarms"]
        hub.broker.up = True
        await until(lambda: "ledger_lost" not in rig.agent.status()["alarms"])
        assert rig.agent.status()["spent_bytes"] == spent
        assert (await rig.agent.infer(sample())).why is DecisionReason.DENIED_BUDGET
        assert len(hub.questions) == 2


async def test_an_older_copy_of_the_database_refunds_nothing(tmp_path: Path):
    rules, hub = ruled(bytes_per_day=2000), Remembers()
    backup = tmp_path / "backup"
    async with AgentRig(tmp_path, rules, hub):
        pass
    shutil.copy(tmp_path / DATABASE_FILE, backup)
    async with AgentRig(tmp_path, rules, hub) as rig:
        for _ in range(2):
            assert (await rig.agent.infer(sample())).source is AnswerSource.HUB
        spent = rig.agent.status()["spent_bytes"]
        hub.held = {("bytes", rig.agent._clock.hub_day()): spent}
    for name in (f"{DATABASE_FILE}-wal", f"{DATABASE_FILE}-shm"):
        (tmp_path / name).unlink(missing_ok=True)
    shutil.copy(backup, tmp_path / DATABASE_FILE)
    async with AgentRig(tmp_path, rules, hub) as rig:
        assert rig.agent.status()["spent_bytes"] == spent
        assert (await rig.agent.infer(sample())).why is DecisionReason.DENIED_BUDGET
        assert len(hub.questions) == 2


async def test_a_folder_made_anew_sends_nothing_before_the_hub_told_what_it_remembers(tmp_path: Path):
    rules, hub = ruled(bytes_per_day=900), Remembers(mirrors=False)
    hub.held = {("bytes", HUB_TIME_MS // 86_400_000): 800}
    async with AgentRig(tmp_path, rules, hub) as rig:
        await until(lambda: rig.agent._core.permissions.spend.mirrored)
        assert (await rig.agent.infer(sample())).why is DecisionReason.DENIED_BUDGET
        assert not hub.questions


async def test_the_mark_beside_the_database_is_private_and_damage_to_it_is_a_loss(tmp_path: Path):
    async with AgentRig(tmp_path, ruled()):
        pass
    mark = tmp_path / MARKER_FILE
    assert mark.stat().st_mode & 0o777 == 0o600
    mark.write_text("nonsense")
    hub = HubDouble(mirrors=False)
    async with AgentRig(tmp_path, ruled(), hub) as rig:
        assert (await rig.agent.infer(sample())).why is DecisionReason.DENIED_BUDGET


async def test_notes_have_their_own_accounts_where_a_policy_sets_one(tmp_path: Path):
    limited = parse_policy(POLICY.format(**{**DEFAULTS, "mode": "wait"}) + "topics = { ask = 0 }\n").compile()
    hub = HubDouble()
    async with AgentRig(tmp_path, limited, hub) as rig:
        await until(lambda: rig.event_count("notes_over_budget") >= 1)
        assert not hub.notes
        assert (await rig.agent.infer(sample())).source is AnswerSource.HUB


# Differential privacy


async def test_under_dp_only_noised_fields_leave_and_the_58_releases_are_all(tmp_path: Path):
    policy = ruled(DP)
    dp = policy.base.dp
    assert dp is not None
    assert differential_privacy.count_releases(dp) == 58
    hub = HubDouble()
    async with AgentRig(tmp_path, policy, hub) as rig:
        rig.agent._core.on_model(cleared(rig))
        found = [await rig.agent.infer(sample()) for _ in range(60)]
    assert [each.why for each in found] == [DecisionReason.VERDICT] * 58 + [DecisionReason.DENIED_BUDGET] * 2
    assert len(hub.questions) == 58
    assert all(set(question.fields) == {"features"} for _, _, question in hub.questions)
    codes = [question.fields["features"].data for _, _, question in hub.questions]
    assert len(set(codes)) > 8  # one sample, and ever another answer


def cleared(rig: AgentRig) -> CoreSetup:
    """The same setup, with a leakage measurement for exactly this transform chain."""
    setup = rig.agent._core.permissions.setup
    evidence = setup.evidence
    assert evidence is not None
    ruled_now = rig.agent._core.permissions.for_class("open")
    assert isinstance(ruled_now, ClassPermissions)
    out = egress.plan_egress(ruled_now.terms, setup.schema)
    assert isinstance(out, egress.EgressPlan)
    plans = [plan for plan in out.fields if plan.spec.name == "features"]
    row = msgspec.structs.replace(MEASURED.leakage[0], chain=evidence.name(tuple(plans)), upper95=0.1)
    return msgspec.structs.replace(setup, evidence=msgspec.structs.replace(evidence, rows=(row,)))


async def test_noise_is_a_chain_of_its_own_so_unmeasured_nothing_leaves(tmp_path: Path):
    async with AgentRig(tmp_path, ruled(DP)) as rig:
        assert (await rig.agent.infer(sample())).why is DecisionReason.DENIED_UNMEASURED


CHANGED = 'transforms = [{ kind = "top_k", k = 1 }, { kind = "noise", sigma = 2.0 }]'


async def test_a_policy_of_top_k_and_noise_lets_exactly_that_leave(tmp_path: Path):
    document = POLICY.format(**{**DEFAULTS, "mode": "wait"})
    policy = parse_policy(document.replace('transforms = [{ kind = "clip", low = 0, high = 15 }]', CHANGED)).compile()
    hub, lopsided = HubDouble(), np.array([0.4, 0.6], np.float32)
    async with AgentRig(tmp_path, policy, hub) as rig:
        assert (await rig.agent.infer(sample(lopsided))).why is DecisionReason.DENIED_UNMEASURED
        rig.agent._core.on_model(cleared(rig))
        for _ in range(40):
            assert (await rig.agent.infer(sample(lopsided))).source is AnswerSource.HUB
    codec = build_codec(MEASURED.codec, MEASURED.features)
    codes = np.array([codec.decode("features", q.fields["features"]) for _, _, q in hub.questions], float)
    assert len(codes) == 40
    assert np.abs(codes.mean(0) - 9).max() < 1.5  # the greater of 6 and 9 alone, twice
    assert 1 < codes.std() < 3  # and noise, new for each question


async def test_a_rule_that_asks_by_lot_asks_whatever_the_confidence(tmp_path: Path):
    never, always = ruled(DP + "random_ask = 0.0\n"), ruled(DP + "random_ask = 1.0\n")
    async with AgentRig(tmp_path, never) as rig:
        assert (await rig.agent.infer(sample())).why is DecisionReason.NOT_DRAWN
    async with AgentRig(folder(tmp_path, "always"), always) as rig:
        rig.agent._core.on_model(cleared(rig))
        assert (await rig.agent.infer(sample(np.array([0.95, 0.05], np.float32)))).source is AnswerSource.HUB


# The deny-all notice


async def test_a_notice_stops_all_that_leaves_at_once_and_for_good(tmp_path: Path):
    hub = HubDouble()
    async with AgentRig(tmp_path, ruled(), hub) as rig:
        assert (await rig.agent.infer(sample())).source is AnswerSource.HUB
        order(hub, DenyAllNotice(0, 7, "a leak"))
        await until(lambda: rig.agent.status()["notice"] == 7)
        record = await rig.agent.infer(sample())
        assert (record.why, record.source) == (DecisionReason.DENIED_NOTICE, AnswerSource.LOCAL)
        assert "notice_in_force" in rig.agent.status()["alarms"]
        assert rig.agent.status()["notice_why"] == "a leak"
        order(hub, DenyAllNotice(0, 3, "older"))
        rig.agent.use_policy(ruled(version=2))
        assert (await rig.agent.infer(sample())).why is DecisionReason.DENIED_NOTICE
    async with AgentRig(tmp_path, ruled(version=2), hub) as rig:  # a restart forgets no order
        assert (await rig.agent.infer(sample())).why is DecisionReason.DENIED_NOTICE
        document = POLICY.format(**{**DEFAULTS, "mode": "wait", "version": 3})
        cleared_by = parse_policy(document.replace("version = 3\n", "version = 3\nclears_notice = 7\n")).compile()
        rig.agent.use_policy(cleared_by)
        assert (await rig.agent.infer(sample())).source is AnswerSource.HUB
        assert rig.agent.status()["notice"] == 0


async def test_a_notice_that_no_hub_of_ours_signed_for_that_purpose_is_none(tmp_path: Path):
    hub = HubDouble()
    async with AgentRig(tmp_path, ruled(), hub) as rig:
        order(hub, DenyAllNotice(0, 7, "moved from another channel"), channel=TopicChannel.REPLY)
        order(HubDouble(broker=hub.broker, now_ms=1), DenyAllNotice(0, 8, "signed by the same key"))
        await until(lambda: rig.agent.status()["notice"] == 8)
        assert rig.event_count("refused_signature") == 1


async def test_a_notice_ends_what_waits_for_the_link(tmp_path: Path):
    hub = HubDouble()
    async with AgentRig(tmp_path, ruled(), hub) as rig:
        hub.broker.kill()
        await until(lambda: rig.agent.status()["link"] == "down")
        await rig.agent.infer(sample())
        rig.agent._guard.on_deny_all(DenyAllNotice(0, 9, "stop"))
        hub.broker.up = True
        await until(lambda: rig.agent.status()["open"] == 0)
        assert not hub.questions
        assert rig.event_count("outcome_denied") == 1


# What a person sees


async def test_status_names_the_policy_its_layers_and_what_is_left(tmp_path: Path):
    async with AgentRig(tmp_path, ruled(bytes_per_day=5000)) as rig:
        await rig.agent.infer(sample())
        status = rig.agent.status()
    assert (status["policy_name"], status["policy_version"]) == ("test", 1)
    assert status["policy_layers"] == ["site: test@1"]
    assert status["budgets"]["bytes"] == {"left": 5000 - status["spent_bytes"], "limit": 5000}


async def test_a_budget_that_no_longer_pays_for_a_question_is_an_alarm(tmp_path: Path):
    async with AgentRig(tmp_path, ruled(bytes_per_day=2000)) as rig:
        assert "budget_spent" not in rig.agent._guard.alarms()
        answers = [await rig.agent.infer(sample()) for _ in range(4)]
        assert answers[-1].why is DecisionReason.DENIED_BUDGET
        assert answers[-1].source is AnswerSource.LOCAL
        assert "budget_spent" in rig.agent._guard.alarms()

"""Policy enforcement on a running agent: rules, accounts, noise, notices, and tampering with stored spending."""

import shutil
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from edge_agent.app.agent import DATABASE_FILE
from edge_agent.core.commands import Setup
from edge_agent.core.permissions import Ruled
from edge_agent.core.records import Source
from edge_agent.storage import accounts
from edge_agent.storage.schema import MARKER_FILE
from edge_agent.system.environment import Attributes
from models.runtime.runner import EchoRunner
from policies.decisions import egress
from policies.language.document import parse
from policies.model import differential_privacy
from policies.model.policy import Policy
from policies.model.reasons import Why
from tests.edge_agent.doubles.hub_double import DEFAULTS, DEVICE, HUB_TIME_MS, POLICY, HubDouble, Rig, sample, until
from wire.protocol import codec, sealing
from wire.protocol.messages import DenyAll, Header, Heads, Mirror
from wire.protocol.rollout import Assignment
from wire.protocol.topics import Channel, shard_of, topic
from wire.transport.base import Incoming

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
    return parse(POLICY.format(**{**DEFAULTS, "mode": "wait", **changes}) + more).compile()


def folder(parent: Path, name: str) -> Path:
    made = parent / name
    made.mkdir()
    return made


def order(hub: HubDouble, note: DenyAll | Assignment, channel: Channel = Channel.DESIRED) -> None:
    header = Header(shard_of(DEVICE), DEVICE, 0, 0, hub.now_ms, hub.keys.key_id)
    header = msgspec.structs.replace(header, key_id=sealing.key_id(hub.signing.public_key().public_bytes_raw()))
    frame = sealing.sign(header, codec.encode(note), by=hub.signing, channel=channel)
    hub.broker.publish(Incoming(topic(DEVICE, Channel.DESIRED), frame))


@dataclass
class Remembers(HubDouble):
    """Keeps the greatest totals that the device ever reported, as a hub does."""

    held: dict[tuple[str, int], int] = field(default_factory=dict)

    def on_heads(self, heads: Heads) -> None:
        for key, period, amount in heads.spend:
            self.held[key, period] = max(self.held.get((key, period), 0), amount)
        self.tell(Mirror(heads.epoch, tuple((key, period, amount) for (key, period), amount in self.held.items())))


# Rules and their moment


async def test_a_rule_that_asks_what_the_device_does_not_know_of_itself_applies(tmp_path: Path):
    rules = ruled('[[rule]]\nname = "ward"\nwhen = { device_class = ["ward"] }\ndeny = true\n')
    async with Rig(tmp_path, rules) as rig:
        assert (await rig.agent.infer(sample())).why is Why.DENIED_RULE
    known = Attributes(device_class="lab")
    async with Rig(folder(tmp_path, "known"), rules, attributes=known) as rig:
        assert (await rig.agent.infer(sample())).source is Source.HUB
        assert rig.hub.questions[0][2].rule == ""


async def test_what_leaves_names_the_rules_that_applied_and_how_long_it_may_be_kept(tmp_path: Path):
    rules = ruled('[[rule]]\nname = "open-ward"\nwhen = { data_class = ["open"] }\naudit_share = 0.0\n')
    async with Rig(tmp_path, rules) as rig:
        await rig.agent.infer(sample())
        question = rig.hub.questions[0][2]
        assert (question.rule, question.data_class, question.keep_days) == ("open-ward", "open", 7)


async def test_a_question_is_of_one_size_whatever_rule_applies(tmp_path: Path):
    more = "".join(
        f'[[rule]]\nname = "{"n" * 60}{n}"\nwhen = {{ data_class = ["open"], metered = true }}\naudit_share = 0.0\n'
        for n in range(9)
    )
    rules, sizes = ruled(more), set()
    for metered in (True, False):
        attributes = Attributes(metered=metered)
        async with Rig(folder(tmp_path, str(metered)), rules, attributes=attributes) as rig:
            assert (await rig.agent.infer(sample())).source is Source.HUB
            sizes.add(len(rig.hub.questions[0][1]))
            assert rig.agent.status()["spent_bytes"] >= len(rig.hub.questions[0][1])
    assert len(sizes) == 1


async def test_case_103_a_rule_that_begins_to_hold_stops_what_waits_and_takes_its_charge_back(tmp_path: Path):
    """Permission is checked again at every transmission, though the policy document is the same."""
    metered = tmp_path / "metered"
    metered.write_text("no")
    rules = ruled('[[rule]]\nname = "dear"\nwhen = { metered = true }\ndeny = true\n')
    hub = HubDouble()
    async with Rig(tmp_path, rules, hub, attributes=Attributes(metered_file=str(metered))) as rig:
        await rig.agent.infer(sample())
        spent = rig.agent.status()["spent_bytes"]
        hub.broker.kill()
        await until(lambda: rig.agent.status()["link"] == "down")
        record = await rig.agent.infer(sample())
        assert record.why is Why.LINK_DOWN
        metered.write_text("yes")
        rig.agent._guard.look(at_once=True)
        hub.broker.up = True
        await until(lambda: rig.agent.status()["open"] == 0)
        assert rig.count("outcome_denied") == 1
        assert len(hub.questions) == 1
        assert rig.agent.status()["spent_bytes"] == spent
        held = await rig.agent._db.read(accounts.stored)
        assert held.bytes == spent


# Accounts


async def test_case_106_a_rule_has_its_own_account_beside_the_base(tmp_path: Path):
    rules = ruled('[[rule]]\nname = "tight"\nwhen = { data_class = ["open"] }\nbytes_per_day = 1600\n')
    async with Rig(tmp_path, rules) as rig:
        answers = [await rig.agent.infer(sample()) for _ in range(4)]
        assert [a.why for a in answers] == [Why.VERDICT, Why.VERDICT, Why.DENIED_BUDGET, Why.DENIED_BUDGET]
        assert answers[-1].source is Source.LOCAL
        assert len(rig.hub.questions) == 2


async def test_case_106_another_process_that_spent_is_noticed_before_anything_is_sent(tmp_path: Path):
    """Two agents on one database: the second finds at its commit what the first has charged."""
    rules = ruled(bytes_per_day=1600)
    async with Rig(tmp_path, rules) as rig:
        day = rig.agent._clock.day()
        await rig.agent._db.read(lambda db: db.execute("insert into accounts values('bytes',?,1500)", (day,)))
        record = await rig.agent.infer(sample())
        assert (record.why, record.source) == (Why.DENIED_BUDGET, Source.LOCAL)
        assert not rig.hub.questions
        await until(lambda: rig.agent.status()["spent_bytes"] == 1500)
        assert rig.agent.status()["disk"] == "ok"


async def test_case_106_a_lost_ledger_is_exhausted_until_the_hub_has_answered(tmp_path: Path):
    rules, hub = ruled(bytes_per_day=2000), Remembers()
    async with Rig(tmp_path, rules, hub) as rig:
        for _ in range(2):
            assert (await rig.agent.infer(sample())).source is Source.HUB
        spent = rig.agent.status()["spent_bytes"]
        hub.held = {("bytes", rig.agent._clock.day()): spent}
    for name in (DATABASE_FILE, f"{DATABASE_FILE}-wal", f"{DATABASE_FILE}-shm"):
        (tmp_path / name).unlink(missing_ok=True)
    hub.broker.up = False
    async with Rig(tmp_path, rules, hub) as rig:
        record = await rig.agent.infer(sample())
        assert (record.why, record.source) == (Why.DENIED_BUDGET, Source.LOCAL)
        assert "ledger_lost" in rig.agent.status()["alarms"]
        hub.broker.up = True
        await until(lambda: "ledger_lost" not in rig.agent.status()["alarms"])
        assert rig.agent.status()["spent_bytes"] == spent
        assert (await rig.agent.infer(sample())).why is Why.DENIED_BUDGET
        assert len(hub.questions) == 2


async def test_case_106_an_older_copy_of_the_database_refunds_nothing(tmp_path: Path):
    rules, hub = ruled(bytes_per_day=2000), Remembers()
    backup = tmp_path / "backup"
    async with Rig(tmp_path, rules, hub):
        pass
    shutil.copy(tmp_path / DATABASE_FILE, backup)
    async with Rig(tmp_path, rules, hub) as rig:
        for _ in range(2):
            assert (await rig.agent.infer(sample())).source is Source.HUB
        spent = rig.agent.status()["spent_bytes"]
        hub.held = {("bytes", rig.agent._clock.day()): spent}
    for name in (f"{DATABASE_FILE}-wal", f"{DATABASE_FILE}-shm"):
        (tmp_path / name).unlink(missing_ok=True)
    shutil.copy(backup, tmp_path / DATABASE_FILE)
    async with Rig(tmp_path, rules, hub) as rig:
        assert rig.agent.status()["spent_bytes"] == spent
        assert (await rig.agent.infer(sample())).why is Why.DENIED_BUDGET
        assert len(hub.questions) == 2


async def test_case_106_a_folder_made_anew_sends_nothing_before_the_hub_told_what_it_remembers(tmp_path: Path):
    rules, hub = ruled(bytes_per_day=900), Remembers(mirrors=False)
    hub.held = {("bytes", HUB_TIME_MS // 86_400_000): 800}
    async with Rig(tmp_path, rules, hub) as rig:
        await until(lambda: rig.agent._core.ruling.purse.mirrored)
        assert (await rig.agent.infer(sample())).why is Why.DENIED_BUDGET
        assert not hub.questions


async def test_case_106_the_mark_beside_the_database_is_private_and_damage_to_it_is_a_loss(tmp_path: Path):
    async with Rig(tmp_path, ruled()):
        pass
    mark = tmp_path / MARKER_FILE
    assert mark.stat().st_mode & 0o777 == 0o600
    mark.write_text("nonsense")
    hub = HubDouble(mirrors=False)
    async with Rig(tmp_path, ruled(), hub) as rig:
        assert (await rig.agent.infer(sample())).why is Why.DENIED_BUDGET


async def test_notes_have_their_own_accounts_where_a_policy_sets_one(tmp_path: Path):
    limited = parse(POLICY.format(**{**DEFAULTS, "mode": "wait"}) + "topics = { ask = 0 }\n").compile()
    hub = HubDouble()
    async with Rig(tmp_path, limited, hub) as rig:
        await until(lambda: rig.count("notes_over_budget") >= 1)
        assert not hub.notes
        assert (await rig.agent.infer(sample())).source is Source.HUB


# Differential privacy


async def test_case_107_under_dp_only_noised_fields_leave_and_the_58_releases_are_all(tmp_path: Path):
    policy = ruled(DP)
    dp = policy.base.dp
    assert dp is not None
    assert differential_privacy.releases(dp) == 58
    hub = HubDouble()
    async with Rig(tmp_path, policy, hub) as rig:
        rig.agent._core.on_model(cleared(rig))
        found = [await rig.agent.infer(sample()) for _ in range(60)]
    assert [each.why for each in found] == [Why.VERDICT] * 58 + [Why.DENIED_BUDGET] * 2
    assert len(hub.questions) == 58
    assert all(set(question.fields) == {"features"} for _, _, question in hub.questions)
    codes = [question.fields["features"].data for _, _, question in hub.questions]
    assert len(set(codes)) > 8  # one sample, and ever another answer


def cleared(rig: Rig) -> Setup:
    """The same setup, with a leakage measurement for exactly this transform chain."""
    setup = rig.agent._core.ruling.setup
    evidence = setup.evidence
    assert evidence is not None
    ruled_now = rig.agent._core.ruling.of("open")
    assert isinstance(ruled_now, Ruled)
    out = egress.plan(ruled_now.terms, setup.schema)
    assert isinstance(out, egress.Egress)
    plans = [plan for plan in out.fields if plan.spec.name == "features"]
    row = msgspec.structs.replace(MEASURED.leakage[0], chain=evidence.name(tuple(plans)), upper95=0.1)
    return msgspec.structs.replace(setup, evidence=msgspec.structs.replace(evidence, rows=(row,)))


async def test_noise_is_a_chain_of_its_own_so_unmeasured_nothing_leaves(tmp_path: Path):
    async with Rig(tmp_path, ruled(DP)) as rig:
        assert (await rig.agent.infer(sample())).why is Why.DENIED_UNMEASURED


async def test_a_rule_that_asks_by_lot_asks_whatever_the_confidence(tmp_path: Path):
    never, always = ruled(DP + "random_ask = 0.0\n"), ruled(DP + "random_ask = 1.0\n")
    async with Rig(tmp_path, never) as rig:
        assert (await rig.agent.infer(sample())).why is Why.NOT_DRAWN
    async with Rig(folder(tmp_path, "always"), always) as rig:
        rig.agent._core.on_model(cleared(rig))
        assert (await rig.agent.infer(sample(np.array([0.95, 0.05], np.float32)))).source is Source.HUB


# The deny-all notice


async def test_a_notice_stops_all_that_leaves_at_once_and_for_good(tmp_path: Path):
    hub = HubDouble()
    async with Rig(tmp_path, ruled(), hub) as rig:
        assert (await rig.agent.infer(sample())).source is Source.HUB
        order(hub, DenyAll(0, 7, "a leak"))
        await until(lambda: rig.agent.status()["notice"] == 7)
        record = await rig.agent.infer(sample())
        assert (record.why, record.source) == (Why.DENIED_NOTICE, Source.LOCAL)
        assert "notice_in_force" in rig.agent.status()["alarms"]
        assert rig.agent.status()["notice_why"] == "a leak"
        order(hub, DenyAll(0, 3, "older"))
        rig.agent.use_policy(ruled(version=2))
        assert (await rig.agent.infer(sample())).why is Why.DENIED_NOTICE
    async with Rig(tmp_path, ruled(version=2), hub) as rig:  # a restart forgets no order
        assert (await rig.agent.infer(sample())).why is Why.DENIED_NOTICE
        document = POLICY.format(**{**DEFAULTS, "mode": "wait", "version": 3})
        cleared_by = parse(document.replace("version = 3\n", "version = 3\nclears_notice = 7\n")).compile()
        rig.agent.use_policy(cleared_by)
        assert (await rig.agent.infer(sample())).source is Source.HUB
        assert rig.agent.status()["notice"] == 0


async def test_a_notice_that_no_hub_of_ours_signed_for_that_purpose_is_none(tmp_path: Path):
    hub = HubDouble()
    async with Rig(tmp_path, ruled(), hub) as rig:
        order(hub, DenyAll(0, 7, "moved from another channel"), channel=Channel.REPLY)
        order(HubDouble(broker=hub.broker, now_ms=1), DenyAll(0, 8, "signed by the same key"))
        await until(lambda: rig.agent.status()["notice"] == 8)
        assert rig.count("refused_signature") == 1


async def test_a_notice_ends_what_waits_for_the_link(tmp_path: Path):
    hub = HubDouble()
    async with Rig(tmp_path, ruled(), hub) as rig:
        hub.broker.kill()
        await until(lambda: rig.agent.status()["link"] == "down")
        await rig.agent.infer(sample())
        rig.agent._guard.hear_order(DenyAll(0, 9, "stop"))
        hub.broker.up = True
        await until(lambda: rig.agent.status()["open"] == 0)
        assert not hub.questions
        assert rig.count("outcome_denied") == 1


# What a person sees


async def test_status_names_the_policy_its_layers_and_what_is_left(tmp_path: Path):
    async with Rig(tmp_path, ruled(bytes_per_day=5000)) as rig:
        await rig.agent.infer(sample())
        status = rig.agent.status()
    assert (status["policy_name"], status["policy_version"]) == ("test", 1)
    assert status["policy_layers"] == ["site: test@1"]
    assert status["budgets"]["bytes"] == {"left": 5000 - status["spent_bytes"], "limit": 5000}


async def test_case_124_a_budget_that_no_longer_pays_for_a_question_is_an_alarm(tmp_path: Path):
    async with Rig(tmp_path, ruled(bytes_per_day=2000)) as rig:
        assert "budget_spent" not in rig.agent._guard.alarms()
        answers = [await rig.agent.infer(sample()) for _ in range(4)]
        assert answers[-1].why is Why.DENIED_BUDGET
        assert answers[-1].source is Source.LOCAL
        assert "budget_spent" in rig.agent._guard.alarms()

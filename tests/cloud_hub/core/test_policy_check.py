"""Policy check at the hub: by the policy document, the rules a device names, and those that certainly apply."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from cloud_hub.core.policy_check import DeviceFacts, ValidatedQuestion
from cloud_hub.registry.orders import Orders
from policies.language.document import PolicyDocument, compose_policy
from policies.model.composition import hash_documents
from policies.model.policy import Policy
from tests.cloud_hub.doubles.bench import Bench
from tests.cloud_hub.doubles.devices import SimDevice
from tests.policies.doubles.given import plain
from wire.protocol.messages import Refusal, RefusalReason, Tensor, TensorDType

RULES = """
[[rule]]
name = "night"
when = { time = { from = "22:00", to = "06:00", zone = "Europe/Berlin" } }
drop = ["confidence"]
[[rule]]
name = "vitals-stay"
when = { data_class = ["vitals"] }
deny = true
[[rule]]
name = "other-tenant"
when = { tenant = ["other"] }
drop = ["confidence"]
retention = { purpose = "test", keep_days = 2 }
"""
CONFIDENCE = {"confidence": Tensor(TensorDType.FP32, (1,), b"\0\0\0?")}


MORE = (
    ("[egress.data_class]\nopen = true", "[egress.data_class]\nopen = true\nvitals = true\nprivate = false"),
    (
        'name = "features"\nlevel = "P2"\n',
        'name = "features"\nlevel = "P2"\n[[egress.field]]\nname = "confidence"\nlevel = "P2"\n',
    ),
)


def document(
    rules: str = "", name: str = "clinic", layer: str = "tenant", *, keep: int = 7, regions: str = "local"
) -> PolicyDocument:
    edits = (
        ('layer = "tenant"', f'layer = "{layer}"'),
        ('purpose = "test"', f'purpose = "test"\nkeep_days = {keep}'),
        ('regions = ["local"]', f'regions = ["{regions}"]'),
    )
    return plain(*MORE, *edits, name=name, rules=rules)


def served(*devices: SimDevice, policies: tuple[Policy, ...], orders: Orders | None = None) -> Bench:
    return Bench(*devices, orders=orders, documents=policies, policies=frozenset(each.hash for each in policies))


def outcome(bench: Bench, device: SimDevice) -> str:
    """Outcome of the one question that was asked."""
    bench.settle()
    (found,) = [reply for reply in bench.replies(device) if isinstance(reply, Refusal | tuple)]
    return found.reason.value if isinstance(found, Refusal) else "answered"


def ask(device: SimDevice, *policies: Policy, more: bool = False, **changes: Any) -> str:
    bench = served(device, policies=policies)
    fields = device.escalation(1).fields | (CONFIDENCE if more else {})
    bench.ask(device, 1, **{"policy": policies[0].hash, "fields": fields, **changes})
    return outcome(bench, device)


@pytest.fixture
def device() -> SimDevice:
    return SimDevice()


def test_what_the_base_allows_comes_in(device: SimDevice):
    assert ask(device, document(RULES).compile(), more=True) == "answered"


def test_a_rule_that_the_device_names_narrows(device: SimDevice):
    policy = document(RULES).compile()
    assert ask(device, policy, more=True, rule="night") == "policy"
    assert ask(device, policy, rule="night") == "answered"


def test_a_rule_that_surely_applies_is_not_left_out_by_not_naming_it(device: SimDevice):
    policy = document(RULES).compile()
    assert ask(device, policy, data_class="vitals") == "policy"
    assert ask(SimDevice("other--d1"), policy, more=True) == "policy"
    assert ask(SimDevice("other--d1"), policy) == "answered"


def test_a_rule_that_no_document_has_denies(device: SimDevice):
    assert ask(device, document(RULES).compile(), rule="invented") == "policy"


@pytest.mark.parametrize("data_class", ["private", "unlisted", ""])
def test_a_class_that_may_not_leave_or_is_not_named_is_refused(device: SimDevice, data_class: str):
    assert ask(device, document().compile(), data_class=data_class) == "policy"


def test_a_question_for_another_region_is_refused_by_the_hub_as_well(device: SimDevice):
    assert ask(device, document(regions="north").compile()) == "policy"
    assert ask(device, document().compile(), region="north") == "policy"


def test_the_shorter_of_both_times_to_keep_counts(device: SimDevice):
    policy = document(RULES, keep=3).compile()
    for name, said, days in (("demo--d1", 9, 3), ("demo--d1", 1, 1), ("other--d1", 9, 2)):
        asking = SimDevice(name)
        bench = served(asking, policies=(policy,))
        bench.ask(asking, 1, policy=policy.hash, keep_days=said)
        bench.settle()
        (kept,) = bench.store._engine.connect().exec_driver_sql("select keep_until_ms - kept_ms from effects").one()
        assert kept == days * 86_400_000


# Layers


SITE_RULE = """
[[rule]]
name = "quiet"
when = { data_class = ["open"] }
drop = ["confidence"]
"""


def layered() -> tuple[Policy, tuple[str, ...]]:
    """A policy of a tenant layer and a site layer, and their hashes; only the device has the site layer."""
    both = compose_policy((document(RULES), document(SITE_RULE, "ward", "site")))
    return both, tuple(part.hash for part in both.layers)


def test_a_composition_of_which_we_lack_the_site_is_judged_by_the_layers_that_are_here(device: SimDevice):
    both, layers = layered()
    tenant = document(RULES).compile()
    named: dict[str, Any] = {"policy": both.hash, "layers": layers}
    assert ask(device, tenant, **named, rule="ward/quiet") == "answered"
    assert ask(device, tenant, **named, rule="clinic/night+ward/quiet", more=True) == "policy"
    assert ask(device, tenant, **named, data_class="vitals") == "policy"


def test_a_composition_that_is_here_as_a_whole_is_judged_as_a_whole(device: SimDevice):
    both, layers = layered()
    named: dict[str, Any] = {"policy": both.hash, "layers": layers}
    assert ask(device, both, **named, rule="ward/quiet") == "answered"
    assert ask(device, both, **named, more=True) == "policy"  # the site's rule certainly applies


def test_layers_that_do_not_make_the_hash_that_is_named_are_no_composition(device: SimDevice):
    both, layers = layered()
    tenant = document(RULES).compile()
    assert ask(device, tenant, policy=both.hash, layers=layers[::-1]) == "policy"
    assert ask(device, tenant, policy="ab" * 16, layers=layers) == "policy"
    strangers = ("ab" * 16, "cd" * 16)
    assert ask(device, tenant, policy=hash_documents(strangers), layers=strangers) == "policy"


def test_an_old_layer_makes_the_composition_too_old(device: SimDevice):
    both, layers = layered()
    old, new = document(RULES).compile_layer(), plain(*MORE, name="clinic", version=2).compile()
    orders = Orders()
    orders.learn_documents((old,))
    bench = served(device, policies=(new,), orders=orders)
    bench.ask(device, 1, policy=both.hash, layers=layers)
    assert outcome(bench, device) == RefusalReason.POLICY_OLD


def test_a_hub_whose_documents_are_not_here_yet_takes_no_question_under_any_name(device: SimDevice):
    bench = Bench(device, policies=frozenset(("not published yet",)))
    bench.ask(device, 1, policy="not published yet")
    assert outcome(bench, device) == RefusalReason.POLICY


def test_what_is_served_may_change_while_the_hub_runs(device: SimDevice):
    first, second, third = (plain(*MORE, name="clinic", version=n).compile() for n in (1, 2, 3))
    bench = served(device, policies=(first,))
    bench.core.replace_policies((second, first))
    bench.ask(device, 1, policy=first.hash)
    assert outcome(bench, device) == "answered"
    bench.core.replace_policies((third, second))
    for seq, policy, becomes in ((2, first, RefusalReason.POLICY_OLD), (3, second, "answered"), (4, third, "answered")):
        bench.ask(device, seq, policy=policy.hash)
        assert outcome(bench, device) == becomes
    bench.core.replace_policies(())
    bench.ask(device, 5, policy=third.hash)
    assert outcome(bench, device) == RefusalReason.POLICY


@pytest.mark.parametrize(("known", "becomes"), [("camera", "policy"), ("sensor", "answered"), ("", "answered")])
def test_what_the_registry_says_of_a_device_counts_whatever_the_device_says(known: str, becomes: str):
    rule = '[[rule]]\nname = "cameras"\nwhen = { device_class = ["camera"] }\ndeny = true\n'
    policy, device = document(rule).compile(), SimDevice()
    bench = served(device, policies=(policy,))
    bench.registry.put(replace(device.enrolled(), device_class=known))
    bench.ask(device, 1, policy=policy.hash)
    assert outcome(bench, device) == becomes


GOOD = SimDevice().escalation(1).fields["features"]


def changed(**changes: Any) -> Tensor:
    return msgspec.structs.replace(GOOD, **changes)


@pytest.mark.parametrize(
    "fields",
    [
        {"features": GOOD}, {}, {"other": GOOD}, {"features": GOOD, "other": GOOD}, {"features": GOOD, **CONFIDENCE},
        {"features": GOOD, "confidence": GOOD}, {"features": changed(data=GOOD.data[1:])},
        {"features": changed(shape=(9,))}, {"features": changed(dtype=TensorDType.INT8)},
        {"features": changed(data=b"\xff" * len(GOOD.data))},
    ],
)  # fmt: skip
def test_one_question_is_decoded_as_strictly_as_many(fields: dict[str, Tensor]):
    """The way that each new question takes, and the one that a restart takes with all of a model together."""
    bench, device = Bench(), SimDevice()
    rules = bench.core._context.rules
    question = device.escalation(1, fields=fields)
    alone = rules.validate_question(question, DeviceFacts(device.id, "", ""), bench.now)
    together = rules.decode_questions([device.escalation(2), question, device.escalation(3)])[1]
    if isinstance(together, RefusalReason):
        assert alone is together
    else:
        assert isinstance(alone, ValidatedQuestion)
        assert {name: codes.tolist() for name, codes in alone.work.codes.items()} == {
            name: codes.tolist() for name, codes in together.codes.items()
        }

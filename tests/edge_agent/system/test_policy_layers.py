"""Composing local and published policy documents, and every combination that must be refused."""

from pathlib import Path

import pytest

from edge_agent.app.config import load_config
from edge_agent.cli.policy_files import render_template
from edge_agent.system.policy_layers import PolicyLayers, PolicyStack, parse_layers, parse_published, read_policy_files
from policies.language.document import parse_policy
from policies.model.context import DecisionContext
from policies.model.policy import CompiledLayer, EscalationMode, PolicyError
from policies.model.reasons import DecisionReason, Denied
from policies.model.terms import resolve_terms
from tests.policies.doubles.given import TEXT, with_
from wire.process.exit_codes import ExitCode, ExitError

TENANT = 'name = "demo"', 'name = "demo"\nlayer = "tenant"'
SITE = 'name = "demo"', 'name = "ward"\nlayer = "site"'


def document(*edits: tuple[str, str]) -> CompiledLayer:
    return parse_policy(with_(TEXT, *edits)).compile_layer()


def version(number: int, *edits: tuple[str, str]) -> CompiledLayer:
    return document(("version = 1", f"version = {number}"), *edits)


def test_a_path_is_a_file_and_tuf_a_name():
    assert parse_layers(("tuf:platform", "", "ward.toml"), airgap=False) == PolicyLayers(("platform",), ("ward.toml",))


def test_files_and_published_documents_are_one_policy():
    site = document(SITE, ("threshold = 0.9", "threshold = 0.5"))
    policy = PolicyStack((site,), (document(TENANT),)).policy
    assert policy is not None
    assert [part.name for part in policy.layers] == ["demo", "ward"]
    assert policy.base.threshold == 0.5


def test_without_any_document_there_is_no_policy_and_nothing_leaves():
    assert PolicyStack().policy is None
    assert resolve_terms(None, DecisionContext("open")) == Denied(
        DecisionReason.DENIED_POLICY_ERROR, "there is no policy: nothing may leave"
    )


def test_a_published_layer_that_is_missing_or_unreadable_leaves_no_policy():
    assert parse_published([TEXT.encode(), None]) is None
    assert parse_published([TEXT.encode(), b"\xff"]) is None
    assert parse_published([with_(TEXT, ("schema = 2", "schema = 3")).encode()]) is None
    assert PolicyStack((document(SITE),), None).policy is None


def test_an_older_layer_is_not_taken():
    standing = PolicyStack((document(SITE),), (version(5, TENANT),))
    assert standing.replace_published((version(4, TENANT),)) is None
    assert standing.replace_files((document(SITE, ("version = 1", "version = 2")),)) is not None
    assert standing.replace_files((document(SITE),)) is None


def test_another_text_under_the_same_version_is_not_taken():
    standing = PolicyStack(published=(version(5),))
    assert standing.replace_published((version(5, ("threshold = 0.9", "threshold = 0.1")),)) is None
    assert standing.replace_published((version(6, ("threshold = 0.9", "threshold = 0.1")),)) is not None


def test_a_layer_that_was_there_cannot_be_left_out():
    standing = PolicyStack((document(SITE),), (document(TENANT),))
    assert standing.replace_files(()) is None
    assert standing.policy is not None
    assert len(standing.policy.layers) == 2


def test_layers_that_do_not_go_together_change_nothing():
    standing = PolicyStack(published=(document(TENANT),))
    with pytest.raises(PolicyError):
        standing.replace_files((document(TENANT),))
    with pytest.raises(PolicyError):
        PolicyStack((document(TENANT),), (document(TENANT),))


def test_a_file_ends_no_notice():
    unsigned = document(("version = 1", "version = 1\nclears_notice = 7"))
    by_file, by_tuf = PolicyStack((unsigned,)).policy, PolicyStack(published=(unsigned,)).policy
    assert by_file is not None
    assert by_tuf is not None
    assert (by_file.clears_notice, by_tuf.clears_notice) == (0, 7)


# airgap


def test_airgap_beats_every_other_layer():
    files = read_policy_files(PolicyLayers(airgap=True))
    policy = PolicyStack(files, (document(TENANT),)).policy
    assert policy is not None
    found = resolve_terms(policy, DecisionContext("open"))
    assert not isinstance(found, Denied)
    assert (found.mode, found.hubs, found.fields, found.bytes_per_day) == (EscalationMode.LOCAL_ONLY, (), {}, 0)


def test_airgap_alone_is_a_policy():
    assert PolicyStack(read_policy_files(PolicyLayers(airgap=True))).policy is not None


def test_airgap_does_not_expire_for_it_lets_nothing_leave():
    assert parse_policy(render_template("airgap")).last_day == "2099-12-31"


# The configuration


def test_a_list_of_layers_stands_in_the_configuration(tmp_path):
    file = tmp_path / "agent.toml"
    file.write_text('bundle = "b"\npolicy = ["tuf:clinic", "ward.toml"]\nairgap = true\n')
    assert load_config(file, {}).policy_layers() == PolicyLayers(
        ("clinic",), (str(tmp_path / "ward.toml"),), airgap=True
    )


def test_airgap_can_be_switched_by_the_environment(tmp_path):
    file = tmp_path / "agent.toml"
    file.write_text('bundle = "b"\n')
    assert load_config(file, {"SKERRY_AGENT_AIRGAP": "yes"}).policy_layers().airgap


@pytest.mark.parametrize("content", [b"schema = 9", b"\xff\xfe", None], ids=["schema", "no text", "missing"])
def test_a_file_that_cannot_be_used_is_one_line(tmp_path, content):
    path = Path(tmp_path / "policy.toml")
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ExitError) as stop:
        read_policy_files(PolicyLayers(files=(str(path),)))
    assert stop.value.code is (ExitCode.MISSING if content is None else ExitCode.POLICY)
    assert "\n" not in str(stop.value)

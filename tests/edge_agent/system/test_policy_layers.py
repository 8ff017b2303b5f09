"""Composing local and published policy documents, and every combination that must be refused."""

from pathlib import Path

import pytest

from edge_agent.app.config import load
from edge_agent.cli.policy_files import template
from edge_agent.system.policy_layers import Layers, Standing, layers_of, read_files, read_published
from policies.language.document import Document, parse
from policies.model.context import Context
from policies.model.policy import Mode, PolicyError
from policies.model.reasons import Denied, Why
from policies.model.terms import terms
from tests.policies.doubles.given import TEXT, with_
from wire.process.exit_codes import Exit, ExitError

TENANT = 'name = "demo"', 'name = "demo"\nlayer = "tenant"'
SITE = 'name = "demo"', 'name = "ward"\nlayer = "site"'


def document(*edits: tuple[str, str]) -> Document:
    return parse(with_(TEXT, *edits))


def version(number: int, *edits: tuple[str, str]) -> Document:
    return document(("version = 1", f"version = {number}"), *edits)


def test_a_path_is_a_file_and_tuf_a_name():
    assert layers_of(("tuf:platform", "", "ward.toml"), airgap=False) == Layers(("platform",), ("ward.toml",))


def test_files_and_published_documents_are_one_policy():
    site = document(SITE, ("threshold = 0.9", "threshold = 0.5"))
    policy = Standing((site,), (document(TENANT),)).policy
    assert policy is not None
    assert [part.name for part in policy.layers] == ["demo", "ward"]
    assert policy.base.threshold == 0.5


def test_case_103_without_any_document_there_is_no_policy_and_nothing_leaves():
    assert Standing().policy is None
    assert terms(None, Context("open")) == Denied(Why.DENIED_POLICY_ERROR, "there is no policy: nothing may leave")


def test_case_103_a_published_layer_that_is_missing_or_unreadable_leaves_no_policy():
    assert read_published([TEXT.encode(), None]) is None
    assert read_published([TEXT.encode(), b"\xff"]) is None
    assert read_published([with_(TEXT, ("schema = 2", "schema = 3")).encode()]) is None
    assert Standing((document(SITE),), None).policy is None


def test_case_103_an_older_layer_is_not_taken():
    standing = Standing((document(SITE),), (version(5, TENANT),))
    assert standing.take_published((version(4, TENANT),)) is None
    assert standing.take_files((document(SITE, ("version = 1", "version = 2")),)) is not None
    assert standing.take_files((document(SITE),)) is None


def test_case_103_another_text_under_the_same_version_is_not_taken():
    standing = Standing(published=(version(5),))
    assert standing.take_published((version(5, ("threshold = 0.9", "threshold = 0.1")),)) is None
    assert standing.take_published((version(6, ("threshold = 0.9", "threshold = 0.1")),)) is not None


def test_case_103_a_layer_that_was_there_cannot_be_left_out():
    standing = Standing((document(SITE),), (document(TENANT),))
    assert standing.take_files(()) is None
    assert standing.policy is not None
    assert len(standing.policy.layers) == 2


def test_layers_that_do_not_go_together_change_nothing():
    standing = Standing(published=(document(TENANT),))
    with pytest.raises(PolicyError):
        standing.take_files((document(TENANT),))
    with pytest.raises(PolicyError):
        Standing((document(TENANT),), (document(TENANT),))


def test_a_file_ends_no_notice():
    unsigned = document(("version = 1", "version = 1\nclears_notice = 7"))
    by_file, by_tuf = Standing((unsigned,)).policy, Standing(published=(unsigned,)).policy
    assert by_file is not None
    assert by_tuf is not None
    assert (by_file.clears_notice, by_tuf.clears_notice) == (0, 7)


# airgap


def test_airgap_beats_every_other_layer():
    files = read_files(Layers(airgap=True))
    policy = Standing(files, (document(TENANT),)).policy
    assert policy is not None
    found = terms(policy, Context("open"))
    assert not isinstance(found, Denied)
    assert (found.mode, found.hubs, found.fields, found.bytes_per_day) == (Mode.LOCAL_ONLY, (), {}, 0)


def test_airgap_alone_is_a_policy():
    assert Standing(read_files(Layers(airgap=True))).policy is not None


def test_airgap_does_not_expire_for_it_lets_nothing_leave():
    assert parse(template("airgap")).last_day == "2099-12-31"


# The configuration


def test_a_list_of_layers_stands_in_the_configuration(tmp_path):
    file = tmp_path / "agent.toml"
    file.write_text('bundle = "b"\npolicy = ["tuf:clinic", "ward.toml"]\nairgap = true\n')
    assert load(file, {}).layers() == Layers(("clinic",), (str(tmp_path / "ward.toml"),), airgap=True)


def test_airgap_can_be_switched_by_the_environment(tmp_path, monkeypatch):
    file = tmp_path / "agent.toml"
    file.write_text('bundle = "b"\n')
    monkeypatch.setenv("SKERRY_AGENT_AIRGAP", "true")
    assert load(file).layers().airgap


@pytest.mark.parametrize("content", [b"schema = 9", b"\xff\xfe", None], ids=["schema", "no text", "missing"])
def test_case_103_a_file_that_cannot_be_used_is_one_line(tmp_path, content):
    path = Path(tmp_path / "policy.toml")
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ExitError) as stop:
        read_files(Layers(files=(str(path),)))
    assert stop.value.code is Exit.POLICY
    assert "\n" not in str(stop.value)

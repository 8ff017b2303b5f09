"""Policy documents compiled in a process of their own are the same as compiled here; whatever fails is an error."""

import random

import msgspec
import pytest

from edge_agent.system.policy_compiler import CompiledDocument, compile_documents
from edge_agent.system.policy_worker import compile_text
from policies.language.document import parse_policy
from tests.policies.doubles.given import TEXT, with_
from tests.policies.doubles.random_policies import SEEDS, document

RULES = """
[[rule]]
name = "night"
when = { time = { zone = "Europe/Berlin", from = "22:00", to = "06:00" }, label_at_least = "P1", link = ["up"] }
transforms = { features = [{ kind = "quantise", step = 2 }] }
dp = { clip_norm = 1, sigma = 1, delta = 1e-6, epsilon = 1 }
retention = { purpose = "care", keep_days = 1 }
"""


def test_the_process_gives_each_document_its_layer_or_its_line():
    texts = [(TEXT + RULES).encode(), with_(TEXT, ("threshold", "treshold")).encode(), b"\xff", TEXT.encode()]
    whole, misspelt, broken, plain = compile_documents(texts)
    assert whole == CompiledDocument(parse_policy(TEXT + RULES).compile_layer())
    assert misspelt == CompiledDocument(error="escalation: unknown key 'treshold'; did you mean 'threshold'?")
    assert broken == CompiledDocument(error="not UTF-8 text")
    assert plain.layer == parse_policy(TEXT).compile_layer()


@pytest.mark.examples
def test_a_layer_that_went_through_the_pipe_is_the_same():
    for seed in SEEDS:
        layer = document(random.Random(seed)).compile_layer()
        sent = msgspec.msgpack.encode(CompiledDocument(layer))
        assert msgspec.msgpack.decode(sent, type=CompiledDocument).layer == layer, seed
    assert compile_text(TEXT.encode()).error == ""


@pytest.mark.parametrize("worker", ["edge_agent.no_such_worker", "this", "edge_agent.identity.renewal_worker"])
def test_a_process_that_fails_or_says_something_else_leaves_no_document_compiled(worker):
    found = compile_documents([TEXT.encode(), TEXT.encode()], worker)
    assert [each.layer for each in found] == [None, None]
    assert all("the process that compiles it" in each.error for each in found)


def test_a_document_that_comes_back_with_nothing_in_it_is_an_error_and_not_left_out():
    (found,) = compile_documents([TEXT.encode()], "tests.edge_agent.doubles.empty_policy_worker")
    assert found == CompiledDocument(error="the process that compiles it left some out")


def test_no_document_needs_no_process():
    assert compile_documents([], "edge_agent.no_such_worker") == ()

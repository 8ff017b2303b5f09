"""Tokens of a prompt are estimated from its bytes, as the model's own tokenizer was seen to count them."""

import json

from cloud_hub.llm.requests import LlmOperation, LlmRequest, TokenEstimate, parse_request


def ask(prompt: str) -> LlmRequest:
    return parse_request(json.dumps({"model": "m", "prompt": prompt}).encode(), LlmOperation.COMPLETION)


def test_the_first_guess_is_four_bytes_a_token():
    assert TokenEstimate().estimate(ask("x" * 398)) == 100  # two more bytes are quotes


def test_one_answer_to_a_long_prompt_shows_that_a_token_has_one_byte():
    estimate, asked = TokenEstimate(), ask("x" * 1150)
    estimate.learn(asked, 1152)
    assert 900 <= estimate.estimate(asked) <= 1152
    assert estimate.convert_bytes(1024) > 7 * 100  # so a prefix of eight blocks counts as that, and not as two


def test_a_short_answer_hardly_moves_what_many_have_shown():
    estimate, asked = TokenEstimate(), ask("x" * 1150)
    for _ in range(50):
        estimate.learn(asked, 288)
    estimate.learn(ask("y" * 8), 10)
    assert 280 <= estimate.estimate(asked) <= 296


def test_an_engine_that_tells_no_usage_teaches_nothing():
    estimate, asked = TokenEstimate(), ask("x" * 1150)
    before = estimate.estimate(asked)
    estimate.learn(asked, 0)
    assert estimate.estimate(asked) == before

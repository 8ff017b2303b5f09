"""Tokens of a prompt are estimated from its text's bytes, as the tenant's own answers were seen to count them."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cloud_hub.llm.requests import LlmOperation, LlmRequest, parse_request
from cloud_hub.llm.token_estimate import MAX_TENANTS, TokenEstimate

TENANT = "acme"
PICTURE = "data:image/png;base64," + "A9+/" * 350_000


def ask(prompt: str) -> LlmRequest:
    return parse_request(json.dumps({"model": "m", "prompt": prompt}).encode(), LlmOperation.COMPLETION)


def show(text: str, *parts: dict[str, Any]) -> LlmRequest:
    content = [{"type": "text", "text": text}, *parts]
    body = {"model": "m", "messages": [{"role": "user", "content": content}]}
    return parse_request(json.dumps(body).encode(), LlmOperation.CHAT)


def picture(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def test_the_first_guess_is_four_bytes_a_token():
    assert TokenEstimate().estimate(ask("x" * 398), TENANT) == 100  # two more bytes are quotes


def test_one_answer_to_a_long_prompt_shows_that_a_token_has_one_byte():
    estimate, asked = TokenEstimate(), ask("x" * 1150)
    estimate.learn(asked, TENANT, 1152)
    assert 900 <= estimate.estimate(asked, TENANT) <= 1152
    assert estimate.convert_bytes(1024, TENANT) > 7 * 100  # so a prefix of eight blocks counts as that, and not as two


def test_a_short_answer_hardly_moves_what_many_have_shown():
    estimate, asked = TokenEstimate(), ask("x" * 1150)
    for _ in range(50):
        estimate.learn(asked, TENANT, 288)
    estimate.learn(ask("y" * 8), TENANT, 10)
    assert 280 <= estimate.estimate(asked, TENANT) <= 296


def test_an_engine_that_tells_no_usage_teaches_nothing():
    estimate, asked = TokenEstimate(), ask("x" * 1150)
    before = estimate.estimate(asked, TENANT)
    estimate.learn(asked, TENANT, 0)
    assert estimate.estimate(asked, TENANT) == before


def test_bytes_of_pictures_recordings_and_files_are_no_tokens_of_text():
    estimate, words = TokenEstimate(), "What does this show?"
    plain = estimate.estimate(show(words), TENANT)
    for part in (
        picture(PICTURE),
        picture("https://example.org/" + "x" * 1000),
        {"type": "input_audio", "input_audio": {"data": "UklGR" * 100_000, "format": "wav"}},
        {"type": "file", "file": {"file_data": PICTURE, "filename": "a.pdf"}},
        {"type": "video_url", "video_url": {"url": PICTURE}},
    ):
        assert plain + 900 < estimate.estimate(show(words, part), TENANT) < plain + 1100, part["type"]


def test_a_picture_teaches_what_pictures_take_and_nothing_of_texts():
    estimate, text = TokenEstimate(), ask("x" * 4000)
    before = estimate.estimate(text, TENANT)
    shown = show("what is it", picture(PICTURE))
    for _ in range(50):
        estimate.learn(shown, TENANT, 300)
    assert estimate.estimate(text, TENANT) == before
    assert 250 <= estimate.estimate(shown, TENANT) <= 350


def test_what_one_tenant_sends_teaches_nothing_of_what_another_sends():
    estimate, asked = TokenEstimate(), ask("x" * 4000)
    before = estimate.estimate(asked, TENANT)
    for hostile in (1, 10, 100_000):
        for _ in range(50):
            estimate.learn(asked, "hostile", hostile)
    assert estimate.estimate(asked, TENANT) == before


def test_however_odd_a_tenants_prompts_are_the_next_one_counts_within_bounds():
    estimate, asked = TokenEstimate(), ask("x" * 4000)
    for tokens, least, most in ((1, 333, 335), (1_000_000, 8000, 8010)):
        estimate.learn(asked, str(tokens), tokens)
        for _ in range(500):
            estimate.learn(asked, str(tokens), tokens)
        assert least <= estimate.estimate(asked, str(tokens)) <= most


def test_tenants_without_number_take_no_memory_without_bound():
    estimate, asked = TokenEstimate(), ask("x" * 400)
    for number in range(MAX_TENANTS + 10):
        estimate.learn(asked, f"t{number}", 100)
    assert len(estimate._tenants) == MAX_TENANTS


@given(st.lists(st.tuples(st.integers(0, 10_000), st.floats(0.001, 3600.0)), max_size=30))
def test_how_quickly_one_tenants_answers_come_says_nothing_of_what_another_is_billed_for(answers):
    estimate = TokenEstimate()
    estimate.learn_pace(TENANT, 100, 2.0)
    for tokens, elapsed_s in answers:
        estimate.learn_pace("hostile", tokens, elapsed_s)
    assert estimate.estimate_answer(TENANT, 4.0) == 200
    assert estimate.estimate_answer("new", 4.0) == 0

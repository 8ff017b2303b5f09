"""Escalation decision: total over floats, and in doubt the sample stays on the device."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from policies.decisions.escalation import EscalationAction, EscalationDecision, LinkState, decide_escalation
from policies.model.policy import ASKING_MODES, EscalationMode, NoiseTerms, NoveltyAction, PrivacyUnit, Terms
from policies.model.reasons import DecisionReason
from tests.policies.doubles.given import DEMO, JUNK, policy

UP, DOWN, QUIET = LinkState(up=True), LinkState(up=False), LinkState(up=True, quiet_until=100.0)
NOT_DRAWN, DRAWN = 0.99, 0.0
ANY_FLOAT = st.floats()


def test_confident_answer_stays():
    assert decide_escalation(0.9, UP, DEMO, NOT_DRAWN, 1.0) == EscalationDecision(
        EscalationAction.KEEP, DecisionReason.CONFIDENT
    )


def test_unsure_answer_is_asked():
    assert decide_escalation(0.89, UP, DEMO, NOT_DRAWN, 1.0) == EscalationDecision(
        EscalationAction.ASK, DecisionReason.UNSURE
    )


def test_unsure_answer_waits_in_the_outbox_while_the_link_is_down():
    assert decide_escalation(0.1, DOWN, DEMO, NOT_DRAWN, 1.0) == EscalationDecision(
        EscalationAction.QUEUE, DecisionReason.LINK_DOWN
    )


def test_hub_that_asked_for_silence_gets_it():
    assert decide_escalation(0.1, QUIET, DEMO, NOT_DRAWN, 99.9) == EscalationDecision(
        EscalationAction.KEEP, DecisionReason.HUB_QUIET
    )
    assert decide_escalation(0.1, QUIET, DEMO, NOT_DRAWN, 100.0).action is EscalationAction.ASK


def test_audit_asks_a_confident_answer_too():
    assert decide_escalation(0.99, UP, DEMO, DRAWN, 1.0) == EscalationDecision(
        EscalationAction.AUDIT, DecisionReason.AUDIT, audit=True
    )


def test_drawn_unsure_answer_is_asked_as_usual_and_counts_for_the_audit():
    assert decide_escalation(0.1, UP, DEMO, DRAWN, 1.0) == EscalationDecision(
        EscalationAction.ASK, DecisionReason.UNSURE, audit=True
    )


def test_audit_is_left_out_while_the_hub_wants_silence():
    assert decide_escalation(0.99, QUIET, DEMO, DRAWN, 1.0).action is EscalationAction.KEEP


def test_hub_first_asks_whatever_the_confidence():
    first = policy(mode=EscalationMode.HUB_FIRST)
    assert decide_escalation(1.0, UP, first, NOT_DRAWN, 1.0) == EscalationDecision(
        EscalationAction.ASK, DecisionReason.HUB_FIRST
    )
    assert decide_escalation(1.0, DOWN, first, NOT_DRAWN, 1.0) == EscalationDecision(
        EscalationAction.QUEUE, DecisionReason.LINK_DOWN
    )
    assert decide_escalation(1.0, QUIET, first, NOT_DRAWN, 1.0) == EscalationDecision(
        EscalationAction.KEEP, DecisionReason.HUB_QUIET
    )


@pytest.mark.parametrize(
    ("mode", "why"),
    [(EscalationMode.LOCAL_ONLY, DecisionReason.LOCAL_ONLY), (EscalationMode.DISABLED, DecisionReason.DISABLED)],
)
def test_modes_that_never_ask(mode, why):
    assert decide_escalation(0.0, UP, policy(mode=mode, audit_share=1.0), DRAWN, 1.0) == EscalationDecision(
        EscalationAction.KEEP, why
    )


@given(ANY_FLOAT, st.sampled_from(EscalationMode), st.booleans(), ANY_FLOAT, ANY_FLOAT, ANY_FLOAT)
@example(math.nan, EscalationMode.HUB_FIRST, True, math.nan, math.nan, math.nan)
@example(math.inf, EscalationMode.HUB_FIRST, True, 0.0, 0.0, 0.0)
def test_total_over_floats_and_never_asks_on_an_impossible_confidence(confidence, mode, up, quiet, dice, now):
    decision = decide_escalation(confidence, LinkState(up, quiet), policy(mode=mode), dice, now)
    assert isinstance(decision, EscalationDecision)
    if not 0.0 <= confidence <= 1.0:
        assert decision == EscalationDecision(EscalationAction.KEEP, DecisionReason.INVALID_CONFIDENCE)
    if mode not in ASKING_MODES:
        assert decision.action is EscalationAction.KEEP
    if math.isnan(quiet):
        assert decision.action in {EscalationAction.KEEP, EscalationAction.QUEUE}


@given(field=st.sampled_from(["mode", "threshold", "audit_share"]), junk=JUNK, confidence=st.floats(0, 1))
def test_damaged_policy_keeps(field, junk, confidence):
    sound = isinstance(junk, bool) and field != "mode"  # True is 1.0: a sound share
    decision = decide_escalation(confidence, UP, policy(**{field: junk}), NOT_DRAWN, 1.0)
    assert sound or decision == EscalationDecision(EscalationAction.KEEP, DecisionReason.DENIED_POLICY_ERROR)


@given(JUNK.filter(lambda junk: junk is not True))
def test_a_link_that_is_not_clearly_up_is_down(junk):
    assert decide_escalation(0.1, LinkState(junk), DEMO, NOT_DRAWN, 1.0).action is EscalationAction.QUEUE


def test_no_policy_keeps():
    nothing: Terms = None  # type: ignore[assignment]
    assert decide_escalation(0.1, UP, nothing, DRAWN, 1.0) == EscalationDecision(
        EscalationAction.KEEP, DecisionReason.DENIED_POLICY_ERROR
    )


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1), st.floats(0, 1, exclude_max=True))
def test_a_lower_threshold_asks_no_more(confidence, first, second, dice):
    low, high = sorted((first, second))
    narrow = decide_escalation(confidence, UP, policy(threshold=low, audit_share=0.0), dice, 1.0)
    wide = decide_escalation(confidence, UP, policy(threshold=high, audit_share=0.0), dice, 1.0)
    assert narrow.action is EscalationAction.KEEP or wide.action is EscalationAction.ASK


NOISE = NoiseTerms(PrivacyUnit.DEVICE, 1.0, 5.0, 1e-6, 8.0, 30, 0.2, 0.1, 1000, 10)


@given(st.floats(0, 1), st.floats(0, 1, exclude_max=True), st.sampled_from(ASKING_MODES))
def test_asked_by_lot_the_confidence_says_nothing(confidence, dice, mode):
    decision = decide_escalation(confidence, UP, policy(mode=mode, dp=NOISE), dice, 1.0)
    assert decision.why == (DecisionReason.AUDIT if dice < 0.1 else DecisionReason.NOT_DRAWN)
    assert (decision.action is EscalationAction.ASK) == (dice < 0.1)


def test_asked_by_lot_no_mode_asks_that_does_not():
    assert (
        decide_escalation(0.1, UP, policy(mode=EscalationMode.LOCAL_ONLY, dp=NOISE), DRAWN, 1.0).action
        is EscalationAction.KEEP
    )
    assert decide_escalation(0.1, DOWN, policy(dp=NOISE), DRAWN, 1.0) == EscalationDecision(
        EscalationAction.QUEUE, DecisionReason.LINK_DOWN, audit=True
    )


NOVEL = {action: policy(novel=action) for action in NoveltyAction}


@pytest.mark.parametrize(
    ("action", "wanted"),
    [
        (NoveltyAction.FLAG, EscalationDecision(EscalationAction.KEEP, DecisionReason.CONFIDENT)),
        (NoveltyAction.ASK, EscalationDecision(EscalationAction.ASK, DecisionReason.NOVEL)),
        (NoveltyAction.REJECT, EscalationDecision(EscalationAction.KEEP, DecisionReason.OUT_OF_DOMAIN)),
    ],
)
def test_a_confident_sample_unlike_what_the_model_knows_is_flagged_asked_or_rejected(action, wanted):
    assert decide_escalation(0.99, UP, NOVEL[action], NOT_DRAWN, 1.0, in_domain=False) == wanted
    for known in (True, None):
        kept = decide_escalation(0.99, UP, NOVEL[action], NOT_DRAWN, 1.0, in_domain=known)
        assert kept == EscalationDecision(EscalationAction.KEEP, DecisionReason.CONFIDENT)


def test_a_rejected_sample_is_never_asked_not_even_unsure_or_drawn_or_first():
    rejects = policy(novel=NoveltyAction.REJECT, audit_share=1.0)
    first = policy(novel=NoveltyAction.REJECT, mode=EscalationMode.HUB_FIRST)
    wanted = EscalationDecision(EscalationAction.KEEP, DecisionReason.OUT_OF_DOMAIN)
    for confidence, link, terms in ((0.1, UP, rejects), (0.99, UP, rejects), (0.5, DOWN, first), (0.9, QUIET, first)):
        assert decide_escalation(confidence, link, terms, DRAWN, 1.0, in_domain=False) == wanted
    local = policy(novel=NoveltyAction.REJECT, mode=EscalationMode.LOCAL_ONLY)
    assert decide_escalation(0.9, UP, local, NOT_DRAWN, 1.0, in_domain=False) == wanted


def test_asking_for_novelty_obeys_the_link_and_the_hubs_silence_and_keeps_the_reason_of_a_doubt():
    asks = NOVEL[NoveltyAction.ASK]
    down = decide_escalation(0.99, DOWN, asks, NOT_DRAWN, 1.0, in_domain=False)
    assert down == EscalationDecision(EscalationAction.QUEUE, DecisionReason.LINK_DOWN)
    quiet = decide_escalation(0.99, QUIET, asks, NOT_DRAWN, 1.0, in_domain=False)
    assert quiet == EscalationDecision(EscalationAction.KEEP, DecisionReason.HUB_QUIET)
    assert decide_escalation(0.1, UP, asks, NOT_DRAWN, 1.0, in_domain=False).why is DecisionReason.UNSURE
    drawn = decide_escalation(0.99, UP, asks, DRAWN, 1.0, in_domain=False)
    assert drawn == EscalationDecision(EscalationAction.ASK, DecisionReason.NOVEL, audit=True)


@pytest.mark.parametrize("action", NoveltyAction)
def test_what_is_drawn_at_random_does_not_depend_on_the_novelty(action):
    lot = NoiseTerms(PrivacyUnit.DEVICE, 8.0, 5.0, 1e-6, 8.0, 30, 0.2, 0.5, 100, 1)
    for dice, leaves in ((0.4, True), (0.6, False)):
        for known in (True, False):
            found = decide_escalation(0.1, UP, policy(novel=action, dp=lot), dice, 1.0, in_domain=known)
            assert (found.action is EscalationAction.ASK) is leaves


@given(st.sampled_from(EscalationMode), st.booleans(), st.floats(0, 1), st.floats(0, 1, exclude_max=True))
def test_a_narrower_action_on_novel_samples_asks_no_more(mode, up, confidence, dice):
    asked = [
        decide_escalation(confidence, LinkState(up), policy(mode=mode, novel=action), dice, 1.0, in_domain=False).action
        is not EscalationAction.KEEP
        for action in NoveltyAction
    ]
    assert asked == sorted(asked, reverse=True)


def test_an_impossible_confidence_and_a_switched_off_device_stay_what_they_are():
    rejects = NOVEL[NoveltyAction.REJECT]
    assert decide_escalation(math.nan, UP, rejects, 0.0, 1.0, in_domain=False).why is DecisionReason.INVALID_CONFIDENCE
    off = policy(novel=NoveltyAction.REJECT, mode=EscalationMode.DISABLED)
    assert decide_escalation(0.9, UP, off, 0.0, 1.0, in_domain=False).why is DecisionReason.DISABLED
    junk = policy(novel="perhaps")
    assert decide_escalation(0.9, UP, junk, 0.5, 1.0, in_domain=False).why is DecisionReason.DENIED_POLICY_ERROR


RANDOM_ASK = NoiseTerms(PrivacyUnit.RECORD, 1.0, 1.0, 1e-6, 1.0, 30, 0.0, 0.5, 1, 1)


def decide_by_hand(
    confidence: float, link: LinkState, terms: Terms, dice: float, now: float, in_domain: bool | None
) -> tuple[EscalationAction, DecisionReason, bool]:
    """The page's words, a line each: what is drawn, what is asked, what stays and by which reason."""
    keep, lot = EscalationAction.KEEP, terms.dp is not None and terms.dp.random_ask is not None
    drawn = dice < terms.audit_share
    stays = {EscalationMode.DISABLED: DecisionReason.DISABLED, EscalationMode.LOCAL_ONLY: DecisionReason.LOCAL_ONLY}
    asked: DecisionReason | None = None
    left = DecisionReason.CONFIDENT
    if terms.mode in stays:
        left = stays[terms.mode]
    elif lot:
        asked = DecisionReason.AUDIT if dice < terms.dp.random_ask else None  # type: ignore[union-attr,operator]
        left = DecisionReason.NOT_DRAWN
    elif terms.mode is EscalationMode.HUB_FIRST:
        asked = DecisionReason.HUB_FIRST
    elif confidence < terms.threshold:
        asked = DecisionReason.UNSURE
    quiet = now < link.quiet_until
    if in_domain is False and left is not DecisionReason.DISABLED:
        if terms.novel is NoveltyAction.REJECT and not (lot and asked and not (link.up and quiet)):
            return keep, DecisionReason.OUT_OF_DOMAIN, False
        if terms.novel is NoveltyAction.ASK and not lot and not asked and left is DecisionReason.CONFIDENT:
            asked = DecisionReason.NOVEL
    if asked and not link.up:
        return EscalationAction.QUEUE, DecisionReason.LINK_DOWN, drawn
    if asked:
        return (keep, DecisionReason.HUB_QUIET, False) if quiet else (EscalationAction.ASK, asked, drawn)
    if left is DecisionReason.CONFIDENT and drawn and not quiet:
        return EscalationAction.AUDIT, DecisionReason.AUDIT, True
    return keep, left, False


@pytest.mark.parametrize("mode", list(EscalationMode))
@pytest.mark.parametrize("novel", list(NoveltyAction))
@pytest.mark.parametrize("noise", [None, RANDOM_ASK], ids=["plain", "by lot"])
def test_every_decision_is_the_one_that_the_page_says(mode, novel, noise):
    terms = policy(mode=mode, novel=novel, dp=noise, threshold=0.8, audit_share=0.1)
    for confidence in (0.0, 0.79, 0.8, 1.0):
        for link in (UP, DOWN, QUIET):
            for dice in (0.0, 0.09, 0.1, 0.49, 0.5, 0.99):
                for now in (99.9, 100.0):
                    for in_domain in (True, False, None):
                        found = decide_escalation(confidence, link, terms, dice, now, in_domain=in_domain)
                        expected = decide_by_hand(confidence, link, terms, dice, now, in_domain)
                        place = (confidence, link, dice, now, in_domain)
                        assert (found.action, found.why, found.audit) == expected, place

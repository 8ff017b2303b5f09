"""Explanation of one past answer as text: where it was made, why, under which policy and rule, what left, how it ended.

Also the text of what a device took from the update repository, and of a status's values. Pure.

Rule: every sentence comes from a recorded fact; what was not recorded is said to be unknown or left out.
"""

import datetime as dt
from typing import Any, NamedTuple

from policies.model.reasons import DecisionReason

_WHY = {
    DecisionReason.CONFIDENT: "the device was sure enough by itself",
    DecisionReason.UNSURE: "the device was below the policy's threshold, so the hub was asked",
    DecisionReason.AUDIT: "the device was sure; the question was drawn at random, to measure quality",
    DecisionReason.NOVEL: "the sample is unlike what the model knows, and the policy asks the hub about such samples",
    DecisionReason.OUT_OF_DOMAIN: "the sample is unlike what the model knows, and the policy rejects such samples",
    DecisionReason.HUB_FIRST: "the policy's mode asks the hub whatever the confidence",
    DecisionReason.LOCAL_ONLY: "the policy's mode never asks the hub",
    DecisionReason.INVALID_CONFIDENCE: "the model's confidence was not a number in 0..1, so the hub was not asked",
    DecisionReason.LINK_DOWN: "there was no link to the hub; the question was kept for later",
    DecisionReason.HUB_QUIET: "the hub had asked this device to pause; the question was kept for later",
    DecisionReason.OUTBOX_FULL: "the outbox was full, so the hub was not asked",
    DecisionReason.BUDGET_ELAPSED: "the hub did not answer within the policy's budget_s",
    DecisionReason.VERDICT: "the hub answered",
    DecisionReason.REFUSED: "the hub refused the question for good",
    DecisionReason.EXPIRED: "the question became too old to be asked",
    DecisionReason.RETIRED: "the device was retired before the hub had answered",
    DecisionReason.DENIED_UNLISTED_FIELD: "the policy does not list a field that would have to leave",
    DecisionReason.DENIED_LABEL: "a field's label is above what the policy lets leave",
    DecisionReason.DENIED_DATA_CLASS: "the policy does not let samples of this data class leave",
    DecisionReason.DENIED_RULE: "a rule of the policy lets nothing leave in this case",
    DecisionReason.DENIED_PURPOSE: "the policy states no purpose for what is this private",
    DecisionReason.DENIED_NOTICE: "the hub ordered that nothing leaves, and no policy has ended that order yet",
    DecisionReason.NOT_DRAWN: "this policy asks the hub for a random share of samples only, and this one was not drawn",
    DecisionReason.DENIED_REGION: "the policy allows no region where a hub could serve it",
    DecisionReason.DENIED_HUB: "the policy allows none of the hubs this device knows",
    DecisionReason.DENIED_UNMEASURED: (
        "the bundle has no measurement of what its codes, changed as the policy says, give away"
    ),
    DecisionReason.DENIED_LEAKAGE: "by the bundle's own measurement the codes give away more than the policy lets",
    DecisionReason.DENIED_BUDGET: "an account of the policy was spent: bytes, cost or noised releases",
    DecisionReason.DENIED_TOO_BIG: "the question would have been larger than a message may be",
    DecisionReason.DENIED_POLICY_EXPIRED: "the policy had expired; under an expired policy nothing leaves",
    DecisionReason.DENIED_POLICY_CHANGED: (
        "the policy changed before the question was sent, and the new one keeps it here"
    ),
    DecisionReason.DENIED_POLICY_ERROR: "there was no usable policy; without one nothing leaves",
}
_ENDED = {
    "answered": "answered by the hub",
    "expired": "expired",
    "refused": "refused by the hub",
    "denied": "kept here: denied",
}


_KINDS = {"resealed": "sealed again: ", "again": "sent once more: ", "withheld": "did not leave after all: "}


class ExplanationLine(NamedTuple):
    """One line of an explanation: what it is about, and the sentence."""

    about: str
    text: str


def explain_answer(facts: dict[str, Any]) -> list[ExplanationLine]:
    """The explanation of one answer, in the order of events. `facts` as `/v1/answers/{id}/why` gives them."""
    records = facts["records"]
    answer = next((r for r in records if r["kind"] == "answer"), None)
    told = (
        _explain_origin(answer, facts)
        if answer
        else [ExplanationLine("answer", "not recorded here any more; what left still is")]
    )
    told += _explain_egress(facts)
    told += [_explain_outcome(facts)] if facts["ledger"] or facts["outcome"] else []
    for record in (each for each in records if each["kind"] == "correction"):
        told += [_explain_correction(record, answer), *_explain_text(record)]
    if facts["truth"] is not None:
        told.append(ExplanationLine("truth", f"{facts['truth']}, as a user said"))
    return told


def _explain_origin(record: dict[str, Any], facts: dict[str, Any]) -> list[ExplanationLine]:
    """Lines about the answer itself: where, when and by which model it was made, why, and under which policy."""
    where = "on this device" if record["source"] == "local" else "by the hub"
    total_ms = 1000 * record["timings"]["total_s"]
    told = [
        ExplanationLine("answer", _format_label(record)),
        *_explain_text(record),
        ExplanationLine(
            "made", f"{where} by {record['prediction']['model']}, {_format_time(record['at_ms'])}, in {total_ms:.1f} ms"
        ),
        ExplanationLine("why", f"{_explain_reason(record['why'])} ({record['why']})"),
        *_explain_domain(record),
        ExplanationLine("policy", _explain_policy(record, facts)),
        ExplanationLine("class", f"{record['data_class'] or 'none given'} (data class of the sample)"),
    ]
    return [*told, ExplanationLine("trace", record["trace"])] if record["trace"] else told


def _explain_text(record: dict[str, Any]) -> list[ExplanationLine]:
    """Lines about a text: what was written, by which language model, and what it counted."""
    said = record["prediction"]
    if said.get("text") is None:
        return []
    usage = said["usage"]
    counted = "counted by the hub" if usage["estimated"] else "counted by its engine"
    tokens = f"{usage['prompt_tokens']} tokens of prompt, {usage['generated_tokens']} of answer, {counted}"
    return [
        ExplanationLine("text", f"{said['text']}{' [cut]' if usage['cut'] else ''}"),
        ExplanationLine("written", f"by the language model {usage['model']}: {tokens}"),
    ]


def _explain_domain(record: dict[str, Any]) -> list[ExplanationLine]:
    """A line that says whether the sample belongs to what the model knows; none if the model could not tell."""
    known = record["prediction"].get("in_domain")
    if known is None:
        return []
    who = "the device" if record["source"] == "local" else "the hub"
    told = "like" if known else "unlike"
    return [ExplanationLine("domain", f"by {who}'s own measure the sample is {told} what its model knows")]


def _explain_policy(record: dict[str, Any], facts: dict[str, Any]) -> str:
    """The policy's hash, and the rules that let something leave."""
    rules = dict.fromkeys(entry["rule"] for entry in facts["ledger"])
    rule = f", rule {', '.join(rules)}" if rules else ""
    return (record["policy"] or "none was loaded") + rule


def _explain_egress(facts: dict[str, Any]) -> list[ExplanationLine]:
    """Lines about each ledger entry: size, hub, region, fields with their levels and transforms, time and digest."""
    if not facts["ledger"]:
        return [ExplanationLine("left", "nothing left this device")]
    told = []
    for entry in facts["ledger"]:
        again = _KINDS.get(entry["kind"], "")
        fields = "; ".join(_format_field(name, level, entry) for name, level in entry["fields"].items())
        text = f"{again}{entry['size']} bytes, sealed, for {entry['hub']} in region {entry['region']}: {fields}"
        told.append(ExplanationLine("left", f"{text}; committed {_format_time(entry['at_ms'])}"))
        told.append(ExplanationLine("digest", f"SHA-256 {entry['digest']}"))
    return told


def _format_field(name: str, level: str, entry: dict[str, Any]) -> str:
    """A field's name with its level and transforms, such as `features (P2, clipped to 0..15)`."""
    steps = [_format_transform(step) for step in entry["transforms"].get(name, [])]
    return f"{name} ({level}{', ' + ', '.join(steps) if steps else ''})"


def _format_transform(step: dict[str, Any]) -> str:
    """One transform of the policy as text."""
    if step["kind"] == "clip":
        return f"clipped to {step['low']:g}..{step['high']:g}"
    return f"rounded to steps of {step['step']:g}" if step["kind"] == "quantise" else str(step["kind"])


def _explain_outcome(facts: dict[str, Any]) -> ExplanationLine:
    """How the question ended, or that it is still open."""
    ended = facts["outcome"]
    if ended is None:
        return ExplanationLine("question", "still open: it is asked until it is answered, refused or too old")
    word = _ENDED.get(ended["outcome"], ended["outcome"])
    reason = f" ({ended['reason']})" if ended["reason"] else ""
    return ExplanationLine("question", f"{word}{reason}, {_format_time(ended['at_ms'])}")


def _explain_correction(record: dict[str, Any], answer: dict[str, Any] | None) -> ExplanationLine:
    """The hub's verdict beside the first answer: confirmed or corrected, by which model, and how long it took."""
    times = record["timings"]
    work = f"{1000 * times['queue_s']:.1f} ms queued, {1000 * times['compute_s']:.1f} ms computed there"
    who = f"by {record['prediction']['model']} at the hub"
    same = answer is not None and _format_prediction(answer) == _format_prediction(record)
    about, to = ("confirmed", "as") if same else ("corrected", "to")
    strange = "; it says: unlike what its model knows" if record["prediction"].get("in_domain") is False else ""
    return ExplanationLine(
        about, f"{to} {_format_label(record)} {who}, {_format_time(record['at_ms'])}; {work}{strange}"
    )


def _format_prediction(record: dict[str, Any]) -> str:
    """The answer itself: a regressor's value, or a label's number."""
    prediction = record["prediction"]
    if prediction.get("text") is not None:
        return str(prediction["label"]) if prediction["label"] >= 0 else "a text"
    value = prediction["label"] < 0 and len(prediction["scores"])
    return f"{prediction['scores'][0]:.6g}" if value else str(prediction["label"])


def _format_label(record: dict[str, Any]) -> str:
    """The answer with its label's name and its confidence."""
    prediction = record["prediction"]
    known = record.get("label_name", "")
    named = f" ({known})" if known and known != str(prediction["label"]) else ""
    return f"{_format_prediction(record)}{named}, confidence {prediction['confidence']:.3f}"


def _explain_reason(why: str) -> str:
    """The sentence for a reason code; of a code that is unknown here, its own name."""
    return _WHY.get(DecisionReason(why), why.replace("_", " ")) if why in set(DecisionReason) else why


def _format_time(at_ms: int) -> str:
    return dt.datetime.fromtimestamp(at_ms / 1000, dt.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


TextRow = tuple[str, str]


def explain_updates(updates: dict[str, Any]) -> list[TextRow]:
    """Rows about the agent's updates: what serves, versions of the documents, how the last poll went.

    `updates`: the part of that name of the agent's status.
    """
    versions = {path: str(version) for path, version in updates["versions"].items()}
    policies = [f"{_document_name(path)} {version}" for path, version in versions.items() if path.startswith("policy/")]
    keys = [f"{_document_name(path)} {version}" for path, version in versions.items() if path.startswith("keys/")]
    return [
        (
            "updates",
            f"{updates['polls']} polls, the last that succeeded {_format_time_or_never(updates['refreshed_ms'])}",
        ),
        ("  model", updates["model"] or "none from the repository"),
        ("  policy", ", ".join(policies) or "none from the repository"),
        ("  hub keys", ", ".join(keys) or "those of the enrolment"),
        *(("  failure", failure) for failure in updates["failures"]),
    ]


def explain_install(install: dict[str, Any]) -> list[TextRow]:
    """Rows about the agent's install: what is being tried, or was last, and why it was rolled back.

    `install`: the part of that name of the agent's status.
    """
    state, rollout = install["state"], install["rollout"]
    told = f"{state} since {_format_time_or_never(install['since_ms'])}" if install["since_ms"] else state
    watched = f"{rollout}: {'version ' + str(install['version'])}, {install['cohort']}" if rollout else "none"
    left = [("  starts left", str(install["attempts_left"]))] if install["attempts_left"] else []
    last = f"{install['last']}{', ' + install['why'] if install['why'] else ''}"
    return [("install", told), ("  rollout", watched), *left, *([("  last", last)] if install["last"] else [])]


def _document_name(path: str) -> str:
    """The document's name, such as `demo` for `policy/demo.toml`."""
    return path.partition("/")[2].rpartition(".")[0]


def _format_time_or_never(ms: int) -> str:
    return dt.datetime.fromtimestamp(ms / 1000, dt.UTC).strftime("%Y-%m-%d %H:%M:%S UTC") if ms else "never"


def format_budget(held: dict[str, int]) -> str:
    """What is left of an account. Privacy accounts count in small units: a share in percent says more."""
    return f"{held['left']:,} of {held['limit']:,} left ({held['left'] / max(1, held['limit']):.0%})"


def take_status_parts(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """Take those parts out of a status that have words of their own, and return their rows."""
    told = [("drift", format_drift(facts.pop("drift")))] if "drift" in facts else []
    told += explain_updates(facts.pop("updates")) if "updates" in facts else []
    told += explain_install(facts.pop("install")) if "install" in facts else []
    told += [(f"budget {key}", format_budget(held)) for key, held in facts.pop("budgets", {}).items()]
    return told + (explain_energy(facts.pop("energy")) if "energy" in facts else [])


def explain_energy(found: dict[str, Any]) -> list[tuple[str, str]]:
    """Rows of the status: where the figures of energy are from, and what each rule has spent."""
    link, meters = found["link"], "; ".join(f"{name}: {told}" for name, told in found["meters"].items())
    stated = f"{found['watts']:g} W of inference by {found['source']}"
    message = f"a question {link['message_j']:g} J and {link['byte_uj']:g} uJ a byte ({link['kind']})"
    rules = ", ".join(f"{rule} {joules:.3g} J" for rule, joules in sorted(found["by_rule"].items()))
    spent = f"inference {found['inference_j']:.3g} J, questions {found['questions_j']:.3g} J"
    return [("energy", f"{stated}; {message}" + (f"; {meters}" if meters else "")), ("energy spent", spent)] + (
        [("energy by rule", rules)] if rules else []
    )


def format_drift(found: dict[str, Any]) -> str:
    """The state of drift detection as one sentence."""
    if "since_ms" not in found:
        return f"none seen in {found['samples']} samples (level {found['level']:g} of 1)"
    since = dt.datetime.fromtimestamp(found["since_ms"] / 1000, dt.UTC).isoformat(timespec="seconds")
    return f"alarm since {since}: inputs no longer look like those the model was calibrated on"


def format_value(value: object) -> str:
    """A JSON value as text: "yes", "no", "-" for nothing, lists with commas."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {format_value(inner)}" for key, inner in value.items()) or "-"
    if isinstance(value, list | tuple):
        return ", ".join(format_value(inner) for inner in value) or "-"
    return "yes" if value is True else "no" if value is False else "-" if value in ("", None) else str(value)

"""Asks a probe what tickets are about; of what it is unsure of, a language model of the hub; `skerry up` runs it."""

import json
import sys
from pathlib import Path

import skerry_client

EXPECTED = (0.937, 0.969)  # of the pair's accuracy: 95 % by 750 tickets (Wilson) around what was seen


def main() -> int:
    """Exit code 1 if the expected figure is not met."""
    day = json.loads(Path("day.json").read_text(encoding="utf-8"))
    texts, subjects = [text for text, _ in day], [subject for _, subject in day]
    with skerry_client.Agent() as probe:
        first = probe.ask_batch(texts, mode="now")
        best = [probe.answers.get(a, wait_s=60) if a.may_be_corrected else a for a in first]
        home = probe.ask_batch(texts[:50], data_class="signalling")
        asked = next(answer for answer in best if answer.text)
        ledger = probe.answers.why(asked).facts["ledger"]
    alone, pair = share_right(first, subjects), share_right(best, subjects)
    tokens = sum(a.usage.prompt_tokens + a.usage.generated_tokens for a in best if a.usage)
    print(f"probe alone              {alone:.1%} right of {len(day)} tickets")
    print(f"with the language model  {pair:.1%} right, {sum(a.asked_hub for a in best)} asked, {tokens} tokens")
    print(f"one of its answers       {asked.text!r}")
    print(f"what left for it         {ledger[0].get('fields', ledger[0])}")
    print(f"class 'signalling'       {sum(a.asked_hub for a in home)} left")
    met = pair > alone and EXPECTED[0] <= pair <= EXPECTED[1] and not any(a.asked_hub for a in home)
    print("as expected" if met else "NOT as expected")
    return 0 if met else 1


def share_right(answers: list[skerry_client.Answer], truth: list[str]) -> float:
    return sum(a.label_name == subject for a, subject in zip(answers, truth, strict=True)) / len(truth)


if __name__ == "__main__":
    sys.exit(main())

"""Reads the figures of one demo run and ends with 1, naming each, if any breaks its promise."""

import json
import sys
from pathlib import Path


def broken(figures: dict) -> list[str]:
    answers, accuracy = figures["answers"], figures["accuracy"]
    promises = {
        "nothing accepted was lost": figures["lost"] == 0,
        "nothing was answered twice": figures["doubled"] == 0,
        "five agents took part": figures["agents"] == 5,
        "the edge answered alone": answers["local"] > 0,
        "the hub answered": answers["hub"] > 0,
        "policy kept something at home": answers["denied"] > 0,
        "the pair beats the edge alone": accuracy["pair"] > accuracy["edge"],
        "something left, and less than the raw samples": 0 < figures["bytes"]["sent"] < figures["bytes"]["raw"],
        "the broker was killed on the way": figures["broker_killed_at_s"] is not None,
        "first escalated answer within 60 s": figures["first_escalated_answer_s"] <= 60,
    }
    return [promise for promise, kept in promises.items() if not kept]


def main() -> int:
    figures = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    print(json.dumps(figures, indent=2))
    found = broken(figures)
    for promise in found:
        print(f"demo: broken promise: {promise}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

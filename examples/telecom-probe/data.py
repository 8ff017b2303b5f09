"""Tickets of five subjects out of CLINC150, and the words by which the double of a language model knows them."""

import csv
import gzip
import json
import sys
from collections import Counter
from pathlib import Path

from models.zoo.sources import find_dataset
from wire.process.main import run_to_exit

SUBJECTS = {
    "card": ("card_declined", "damaged_card", "report_lost_card", "new_card", "pin_change"),
    "travel": ("book_flight", "flight_status", "lost_luggage", "carry_on", "travel_alert"),
    "car": ("oil_change_how", "tire_pressure", "jump_start", "gas", "schedule_maintenance"),
    "work": ("payday", "pto_request", "pto_balance", "meeting_schedule", "taxes"),
    "kitchen": ("recipe", "cook_time", "ingredients_list", "calories", "meal_suggestion"),
}
OF = {intent: subject for subject, intents in SUBJECTS.items() for intent in intents}
PROMPT = set(Path("prompt.txt").read_text(encoding="utf-8").lower().split())
TAUGHT = 20  # tickets of each intent that the device learns from; the double is told the words of all of them


def main() -> int:
    """Write tickets.csv (what the device learns), replies.json (what the double knows), day.json (what is asked)."""
    found = json.loads(gzip.decompress((find_dataset("clinc150") / "data_full.json.gz").read_bytes()))
    train = [(text, OF[intent]) for text, intent in found["train"] if intent in OF]
    few = Counter[str]()
    with Path("tickets.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("text", "label"))
        for text, intent in found["train"]:
            few[intent] += 1
            if intent in OF and few[intent] <= TAUGHT:
                writer.writerow((text, OF[intent]))
    Path("replies.json").write_text(json.dumps(learn_words(train)), encoding="utf-8")
    day = [(text, OF[intent]) for text, intent in found["test"] if intent in OF]
    Path("day.json").write_text(json.dumps(day), encoding="utf-8")
    return 0


def learn_words(tickets: list[tuple[str, str]]) -> dict[str, str]:
    """Words that stand nearly always in tickets of one subject, and what the double says where it meets one."""
    counts: dict[str, Counter[str]] = {}
    for text, subject in tickets:
        for word in set(text.lower().split()):
            counts.setdefault(word, Counter())[subject] += 1
    known = {}
    for word, of in counts.items():
        subject, count = of.most_common(1)[0]
        if count >= 3 and count / of.total() >= 0.9 and len(word) > 2 and word not in PROMPT:
            known[word] = f"{subject}: the desk for {word} should look"
    return known


if __name__ == "__main__":
    sys.exit(run_to_exit("data.py", main))

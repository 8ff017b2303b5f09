"""Asks a camera what lies on the shelf: as pictures of Pillow, of several classes; `skerry up` runs it."""

import json
import sys
from pathlib import Path

import model
import numpy as np
from PIL import Image

import skerry_client

PICTURES = 600
EXPECTED = (0.866, 0.916)  # 95 % around 89.3%, by these 600 pictures
THRESHOLD, LIMIT = 0.8, 0.97  # of policy.toml


def main() -> int:
    """Exit code 1 if the expected figure is not met."""
    heldout = model.samples().heldout
    truth = heldout.y[:PICTURES]
    pictures = [Image.fromarray(np.rint(x[0] * 255).astype(np.uint8)) for x in heldout.x[0][:PICTURES]]
    with skerry_client.Agent() as camera:
        first = camera.ask_batch(pictures, data_class="face")  # stays, and so the camera answers by itself
        best = camera.ask_batch(pictures, wait_s=60)
        unsure = [picture for picture, answer in zip(pictures, first, strict=True) if answer.confidence < THRESHOLD]
        stayed = {name: camera.ask_batch(unsure[:20], data_class=name) for name in ("face", "child", "queue")}
    alone, pair = share_right(first, truth), share_right(best, truth)
    print(f"camera alone  {alone:.1%} right of {PICTURES} articles")
    asked = sum(answer.asked_hub for answer in best)
    print(f"with the hub  {pair:.1%} right, {asked} asked")
    for name, answers in stayed.items():
        reasons = sorted({answer.reason for answer in answers})
        print(f"class {name:6}  {sum(answer.asked_hub for answer in answers)} left, because {', '.join(reasons)}")
    print(f"leakage       {find_leakage():.2f} SSIM at most, by the strongest attack; the limit is {LIMIT}")
    home = all(not answer.asked_hub for answers in stayed.values() for answer in answers)
    met = pair >= alone and EXPECTED[0] <= pair <= EXPECTED[1] and asked > 0 and home and find_leakage() < LIMIT
    print("as expected" if met else "NOT as expected")
    return 0 if met else 1


def share_right(answers: list[skerry_client.Answer], truth: np.ndarray) -> float:
    return float(np.mean([answer.label == label for answer, label in zip(answers, truth, strict=True)]))


def find_leakage() -> float:
    """How like a picture the best reconstruction from its codes is: the upper end of its interval, as policies want."""
    report = json.loads(Path("bundle.report/report.json").read_text(encoding="utf-8"))
    return max(float(each["upper95"]) for each in report["leakage"] if each["metric"] == "ssim")


if __name__ == "__main__":
    sys.exit(main())

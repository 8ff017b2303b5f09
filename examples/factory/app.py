"""Asks a device how long turbofans will last; in the middle of the shift the hub and its broker are gone."""

import os
import signal
import sys
import time
from pathlib import Path

import model
import numpy as np

import skerry_client

HUB = Path(os.environ["SKERRY_FLEET"], "hub", "state")
WAIT_S = 60.0
EXPECTED = (11.1, 15.8)  # cycles: the interval of 95 % in the bundle's report, by its 100 engines


def main() -> int:
    """Exit code 1 if the expected figure is not met."""
    heldout = model.samples().heldout
    engines, left = list(heldout.x[0]), heldout.y
    with skerry_client.Agent() as agent:
        alone = agent.ask_batch(engines, data_class="recipe")  # stays, and so the device answers by itself
        online = agent.ask_batch(engines[:50], wait_s=WAIT_S)
        hub = stop_the_hub()
        wait_for_link(agent, "down")
        began = time.monotonic()
        shift = [agent.ask(engine) for engine in engines[50:]]
        took_ms = (time.monotonic() - began) * 1000 / len(shift)
        os.kill(hub, signal.SIGCONT)  # the hub starts its broker again by itself
        wait_for_link(agent, "up")
        caught_up = [agent.answers.get(answer, wait_s=WAIT_S) for answer in shift]
    queued = [answer for answer in shift if answer.asked_hub]
    late = [answer for answer in caught_up if answer.kind == "correction"]
    single, pair = rmse(alone, left), rmse([*online, *caught_up], left)
    print(f"device alone  off by {single:.1f} cycles (RMSE) of {len(left)} engines nobody learnt from")
    print(f"with the hub  off by {pair:.1f}, {sum(answer.asked_hub for answer in [*online, *caught_up])} asked")
    print(f"hub gone      {len(shift)} answers, {took_ms:.0f} ms each, {len(queued)} questions kept")
    print(f"hub back      {len(late)} corrections")
    met = pair < single and EXPECTED[0] <= pair <= EXPECTED[1] and 0 < len(queued) == len(late)
    print("as expected" if met else "NOT as expected")
    return 0 if met else 1


def stop_the_hub() -> int:
    """Freeze the hub, as a machine that hangs, and end its broker, as a cable that is cut; return the hub's process."""
    hub = int((HUB / "lock").read_text())
    os.kill(hub, signal.SIGSTOP)
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, rest = entry.read_text().split("(", 1)[1].rsplit(")", 1)
        except OSError:
            continue
        if name == "mosquitto" and int(rest.split()[1]) == hub:
            os.kill(int(entry.parent.name), signal.SIGKILL)
    return hub


def wait_for_link(agent: skerry_client.Agent, state: str) -> None:
    """Wait until the device sees its link in this state."""
    for _ in range(int(WAIT_S * 10)):
        if agent.status()["link"] == state:
            return
        time.sleep(0.1)
    raise SystemExit(f"the link does not come {state}")


def rmse(answers: list[skerry_client.Answer], truth: np.ndarray) -> float:
    values = np.array([answer.value for answer in answers], float)
    return float(np.sqrt(np.mean((values - truth) ** 2)))


if __name__ == "__main__":
    sys.exit(main())

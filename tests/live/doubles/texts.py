"""A text model in a fleet of real processes: labelled fault reports, its bundle, its policy, and questions in words."""

import csv
import random
from pathlib import Path
from typing import Any

import aiohttp

from models.bundle.bundle import Bundle
from models.bundle.text_part import MessageRole, PromptMessage, TextTemplate
from models.forge.text.version import TextRequest, make_text_version
from simulations.processes import AgentHandle, ProcessHarness

FAULTS = {
    "network": ("the switch drops packets", "the link light is dark", "the router restarts at night"),
    "power": ("the breaker trips at start", "the cable smells burnt", "the panel shows no voltage"),
    "pump": ("the pump leaks at the seal", "the bearing of the pump howls", "there is no pressure behind the pump"),
}
WHEN = ("since monday", "again", "after rain", "every hour", "more and more")
POLICY = """
schema = 2
name = "texts"
version = 1
issued = 2026-01-01
expires = 2099-12-31
[escalation]
mode = "{mode}"
threshold = 0.9
audit_share = 0.0
budget_s = 300.0
[egress]
ceiling = "P3"
[[egress.field]]
name = "text"
level = "P3"
transforms = [{{ kind = "redact", patterns = ["name"] }}]
[egress.data_class]
open = true
[locality]
hubs = ["hub-1"]
regions = ["local"]
[retention]
purpose = "triage"
subject_field = "reporter"
[budget]
bytes_per_day = 100_000_000
"""


def write_reports(path: Path, count: int = 300) -> Path:
    """Labelled reports of three departments, the same each time."""
    dice = random.Random(7)
    rows = {
        (f"line {dice.randint(1, 99)}: {dice.choice(said)} {dice.choice(WHEN)}", label)
        for label, said in FAULTS.items()
        for _ in range(count)
    }
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *sorted(rows)])
    return path


def make_bundle(folder: Path, llm: str = "chat", template: str = "{text}", **limits: Any) -> Bundle:
    prompt = TextTemplate(llm=llm, messages=(PromptMessage(MessageRole.USER, template),), **limits)
    source = write_reports(folder / "reports.csv")
    return make_text_version(TextRequest(source, prompt, folder / "triage-1", name="triage", max_bytes=200))


async def tell(stage: ProcessHarness, agent: AgentHandle, text: str, **more: Any) -> dict[str, Any]:
    """Ask about one text; parameters and outputs of the answer by name."""
    tensor = {"name": "text_input", "shape": [1], "datatype": "BYTES", "data": [text]}
    url, within = f"{agent.url}/v2/models/triage/infer", aiohttp.ClientTimeout(total=300)
    async with stage.session.post(url, json={"inputs": [tensor], **more}, timeout=within) as response:
        reply = await response.json()
        assert response.status == 200, reply
    return {**reply["parameters"], **{output["name"]: output["data"] for output in reply["outputs"]}}

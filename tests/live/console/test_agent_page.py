"""The device's own page in Chromium: answers as they come, why, its token, hostile texts, a restart."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from edge_agent.api.app import ApiServer, build_app
from edge_agent.question.records import Sample
from policies.language.document import parse_policy
from tests import ROOT
from tests.cloud_hub.doubles.console_site import EVIL
from tests.edge_agent.doubles.api_double import MemoryAgent
from tests.live.doubles.chromium import PHONE, Visitor
from wire.http.access import ServerAccess

pytestmark = [pytest.mark.live, pytest.mark.timeout(180)]
TOKEN = "t" * 43
POLICY = parse_policy((ROOT / "policies/templates/clinic.toml").read_text()).compile()


class ShownAgent(MemoryAgent):
    """An agent that has something to show in every place of its page. `word`: wherever others may choose a text."""

    def __init__(self, word: str = "plain") -> None:
        super().__init__()
        self.word = word
        self.runner.manifest = msgspec.structs.replace(self.runner.manifest, labels=(word, "one", "two"))

    def status(self) -> dict[str, Any]:
        ledger = {"entries": 3, "at_ms": 1, "witnessed": 3, "witnessed_by": self.word, "witnessed_ms": 1, "unsent": 0}
        return {
            **super().status(), "device": self.word, "alarms": [self.word], "counts": {"answers_local": 4},
            "budgets": {self.word: {"left": 30, "limit": 100}}, "ledger": ledger, "policy_name": self.word,
            "policy_version": 1, "install": {"state": self.word, "rollout": self.word, "why": self.word},
            "updates": {"model": self.word, "refreshed_ms": 1},
        }  # fmt: skip

    async def fill(self) -> None:
        """Two answers, of which the hub corrected the second."""
        for scores in ([0.1, 0.9, 0.0], [0.4, 0.3, 0.3]):
            await self.infer(Sample(np.array(scores, np.float32), data_class=self.word))
        await self.verdict(self.records[1].id, 2)


class AgentSite:
    """The agent's web server, which can be started again on the same port."""

    def __init__(self, agent: ShownAgent, token_file: str = "") -> None:
        self.agent = agent
        self.access = ServerAccess(token_file=token_file)
        self.url = ""

    async def open(self) -> "AgentSite":
        self._server = ApiServer(build_app(self.agent, self.access, policy=lambda: POLICY), self.access)
        self.url = await self._server.start()
        self.access = msgspec.structs.replace(self.access, port=int(self.url.rpartition(":")[2]))
        return self

    async def close(self) -> None:
        await self._server.stop()


@pytest.fixture
async def sites() -> AsyncIterator[list[AgentSite]]:
    opened: list[AgentSite] = []
    yield opened
    for site in opened:
        await site.close()


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(TOKEN + "\n")
    path.chmod(0o600)
    return path


async def start(sites: list[AgentSite], word: str = "plain", token_file: str = "") -> AgentSite:
    agent = ShownAgent(word)
    await agent.fill()
    site = await AgentSite(agent, token_file).open()
    sites.append(site)
    return site


async def see_answers(visitor: Visitor) -> None:
    await visitor.page.get_by_text("corrected:").wait_for()


@pytest.mark.parametrize("look", [{"color_scheme": "light"}, {"color_scheme": "dark"}, {"viewport": PHONE}])
async def test_everybody_can_use_the_devices_page_and_nothing_leaves_it(chromium, sites, look):
    site = await start(sites)
    visitor = await chromium.visit(site.url, **look)
    page = await visitor.open("/")
    await see_answers(visitor)
    await page.get_by_role("button", name="Why answer").first.click()
    await page.locator("#why dd").first.wait_for()
    assert await visitor.find_barriers() == []
    assert await page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert "triage" in await page.locator("#policy").inner_text()
    assert (visitor.faults, visitor.strangers) == ([], [])


async def test_hostile_texts_are_text_on_the_devices_page(chromium, sites):
    site = await start(sites, EVIL)
    visitor = await chromium.visit(site.url)
    page = await visitor.open("/")
    await see_answers(visitor)
    await page.get_by_role("button", name="Why answer").first.click()
    await page.locator("#why dd").first.wait_for()
    assert "<script>alert(1)</script>" in await visitor.text()
    assert await page.locator("img[src=x], main script").count() == 0
    assert (visitor.faults, visitor.strangers) == ([], [])


async def test_an_answer_appears_on_the_open_page_by_itself_also_after_a_restart(chromium, sites):
    site = await start(sites)
    visitor = await chromium.visit(site.url)
    page = await visitor.open("/")
    await see_answers(visitor)
    await site.close()
    lost = page.get_by_text("The agent does not answer")
    await lost.wait_for()
    await site.open()
    await lost.wait_for(state="hidden")
    await site.agent.infer(Sample(site.agent.samples[0].x, data_class="open"))
    await page.locator("#answers tr").nth(2).wait_for()


async def test_a_page_of_a_device_with_a_token_shows_nothing_without_it(chromium, sites, token_file):
    site = await start(sites, token_file=str(token_file))
    visitor = await chromium.visit(site.url)
    page = await visitor.open("/")
    await page.get_by_label("Token").fill("another")
    await page.get_by_role("button", name="Show").click()
    await page.get_by_role("alert").wait_for()
    assert await page.locator("#answers td").count() == 0
    await page.get_by_label("Token").fill(TOKEN)
    await page.get_by_role("button", name="Show").click()
    await see_answers(visitor)
    assert await page.evaluate("[localStorage.length, sessionStorage.length, document.cookie].join()") == "0,0,"
    assert visitor.strangers == []

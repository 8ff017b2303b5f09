"""The local API of an agent that has no model yet, and its route that asks for updates."""

from tests.edge_agent.doubles.api_double import MemoryAgent, serve_api

SAMPLE = {"inputs": [{"name": "scores", "shape": [1, 3], "datatype": "FP32", "data": [0.9, 0.05, 0.05]}]}


async def test_without_a_model_the_agent_lives_and_is_not_ready():
    agent = MemoryAgent()
    agent.mode = "no model"
    async with serve_api(agent) as session:
        for path, status in (("/healthz", 200), ("/readyz", 503), ("/v2/health/live", 200), ("/v2/health/ready", 503)):
            async with session.get(path) as response:
                assert response.status == status, path
        async with session.post("/v2/models/echo/infer", json=SAMPLE) as response:
            assert response.status == 503
            assert (await response.json())["error"].startswith("no_model: ")
        agent.mode = "answer_now"
        async with session.post("/v2/models/echo/infer", json=SAMPLE) as response:
            assert response.status == 200


async def test_the_model_card_follows_the_model_that_answers():
    agent = MemoryAgent()
    async with serve_api(agent) as session:
        async with session.get("/v2/models/echo") as response:
            assert (await response.json())["versions"] == ["7"]
        agent.runner = type(agent.runner)(labels=3, version=8)
        async with session.get("/v2/models/echo") as response:
            assert (await response.json())["versions"] == ["8"]
        async with session.get("/v2/models/echo/versions/7") as response:
            assert response.status == 404


async def test_a_person_can_ask_for_updates_and_hears_where_there_are_none():
    agent = MemoryAgent()
    async with serve_api(agent) as session:
        async with session.post("/v1/refresh") as response:
            assert response.status == 202
        agent.updating = False
        async with session.post("/v1/refresh") as response:
            assert response.status == 409
    assert agent.refreshed == 2


async def test_a_page_in_a_browser_cannot_ask_for_updates():
    agent = MemoryAgent()
    headers = {"Origin": "http://evil.example"}
    async with serve_api(agent) as session, session.post("/v1/refresh", headers=headers) as response:
        assert response.status == 403
    assert agent.refreshed == 0

"""An unmodified `tritonclient[http]` against a running server. It needs gevent, so it runs in a process of its own."""

import asyncio
import json
import sys
from typing import Any

from tests.edge_agent.doubles.api_double import POLICY, MemoryAgent, serve_api

CLIENT = """
import json, sys
import numpy as np
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

client = triton.InferenceServerClient(sys.argv[1])
seen = {
    "live": client.is_server_live(),
    "ready": client.is_server_ready(),
    "model_ready": client.is_model_ready("echo") and client.is_model_ready("echo", "7"),
    "other_ready": client.is_model_ready("other"),
    "server": client.get_server_metadata(),
    "metadata": client.get_model_metadata("echo"),
}
x = np.array([[0.1, 0.9, 0.0], [0.4, 0.3, 0.3]], np.float32)

def ask(batch, binary, outputs, model="echo", **extra):
    given = triton.InferInput("scores", list(batch.shape), "FP32")
    given.set_data_from_numpy(batch, binary_data=binary)
    return client.infer(model, [given], outputs=outputs, **extra)

for name, binary in (("binary", True), ("json", False)):
    outputs = [triton.InferRequestedOutput(n, binary_data=binary) for n in ("scores", "label", "label_name")]
    result = ask(x, binary, outputs, request_id="mine")
    seen[name] = {
        "same": bool((result.as_numpy("scores") == x).all()),
        "label": result.as_numpy("label").tolist(),
        "names": [t.decode() if isinstance(t, bytes) else t for t in result.as_numpy("label_name").tolist()],
        "id": result.get_response()["id"],
    }
mixed = ask(x, True, [triton.InferRequestedOutput("scores", binary_data=False), triton.InferRequestedOutput("label")])
seen["mixed"] = [mixed.as_numpy("scores").shape, mixed.as_numpy("label").tolist()]
one = ask(x[1:], True, None, parameters={"data_class": "open"}, headers={"traceparent": sys.argv[2]})
seen["every_output"] = [o["name"] for o in one.get_response()["outputs"]]
seen["parameters"] = one.get_response()["parameters"]
seen["batch_parameters"] = mixed.get_response()["parameters"]

def refused(**changes):
    try:
        ask(**{"batch": x, "binary": True, "outputs": None, **changes})
    except InferenceServerException as error:
        return [error.status(), error.message()]

seen["nan"] = refused(batch=np.full((1, 3), np.nan, np.float32))
seen["shape"] = refused(batch=np.zeros((1, 4), np.float32))
seen["unknown"] = refused(model="other")
seen["too_big"] = refused(batch=np.zeros((9000, 3), np.float32))
print(json.dumps(seen))
"""
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def triton(url: str) -> Any:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CLIENT, url.removeprefix("http://"), TRACE, stdout=-1, stderr=-1
    )
    out, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    return json.loads(out)


async def test_an_unmodified_triton_client_asks_the_device():
    agent = MemoryAgent()
    async with serve_api(agent) as session:
        seen = await triton(str(session._base_url).rstrip("/"))
    assert seen["live"]
    assert seen["ready"]
    assert seen["model_ready"]
    assert not seen["other_ready"]
    assert seen["server"] == {"name": "skerry-agent", "version": "1.2.3", "extensions": ["binary_tensor_data"]}
    told = {"low": 0.0, "high": 1.0}
    assert seen["metadata"]["inputs"] == [{"name": "scores", "datatype": "FP32", "shape": [-1, 3], "parameters": told}]
    assert seen["metadata"]["versions"] == ["7"]
    expected = {"same": True, "label": [1, 0], "names": ["1", "0"], "id": "mine"}
    assert seen["binary"] == expected
    assert seen["json"] == expected
    assert seen["mixed"] == [[2, 3], [1, 0]]
    assert seen["every_output"] == ["scores", "label", "confidence", "label_name"]
    parameters = seen["parameters"]
    assert parameters.pop("confidence") == 0.4000000059604645
    assert parameters == {
        "source": "local",
        "reason": "unsure",
        "in_domain": "",
        "model_version": "7",
        "policy_hash": POLICY,
        "escalation_id": "beef-7",
        "answer_id": f"{7:032x}",
        "trace_id": TRACE[3:35],
    }
    assert seen["batch_parameters"]["reason"] == "confident,unsure"
    assert agent.samples[-1].trace == TRACE
    assert agent.samples[-1].data_class == "open"
    assert seen["nan"] == ["400", "input 'scores': a value is not a finite number"]
    assert seen["shape"] == ["400", "input 'scores': shape [1,4], expected [-1,3]"]
    assert seen["unknown"] == ["404", "unknown model 'other', this device serves 'echo'"]
    assert seen["too_big"][0] == "413"

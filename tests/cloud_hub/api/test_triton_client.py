"""An unmodified `tritonclient[http]` against the hub. It brings gevent, so it runs in a process of its own."""

import asyncio
import json
import sys

from tests.cloud_hub.doubles.api_site import Site

CLIENT = """
import json, sys
import numpy as np
import tritonclient.http as triton

client = triton.InferenceServerClient(sys.argv[1])
allowed = {"Authorization": sys.argv[2]}
x = np.arange(8, dtype=np.float32).reshape(2, 2, 2)
seen = {
    "live": client.is_server_live(),
    "ready": client.is_server_ready() and client.is_model_ready("digits") and client.is_model_ready("digits", "6"),
    "other": client.is_model_ready("other"),
    "metadata": client.get_model_metadata("digits"),
}
for name, binary in (("binary", True), ("json", False)):
    given = triton.InferInput("image", [2, 2, 2], "FP32")
    given.set_data_from_numpy(x, binary_data=binary)
    outputs = [triton.InferRequestedOutput(n, binary_data=binary) for n in ("scores", "label", "label_name")]
    result = client.infer("digits", [given], outputs=outputs, request_id="mine")
    names = [t.decode() if isinstance(t, bytes) else t for t in result.as_numpy("label_name").tolist()]
    seen[name] = [result.as_numpy("label").tolist(), names, list(result.as_numpy("scores").shape)]
timed = client.infer("digits", [given], priority=1, timeout=250_000)
seen["index"] = [(kept["version"], kept["state"]) for kept in client.get_model_repository_index()]
client.unload_model("digits", headers=allowed)
client.load_model("digits", headers=allowed)
stats = client.get_inference_statistics("digits", "7")["model_stats"][0]
seen["stats"] = [stats["inference_count"], stats["execution_count"]]
seen["extensions"] = client.get_server_metadata()["extensions"]
seen["version"] = result.get_response()["model_version"]
print(json.dumps(seen))
"""


async def test_an_unmodified_triton_client_asks_the_hub(tmp_path):
    site = await Site(tmp_path).open()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        CLIENT,
        site.url.removeprefix("http://"),
        site.admin["Authorization"],
        stdout=-1,
        stderr=-1,
    )
    out, errors = await process.communicate()
    await site.close()
    assert process.returncode == 0, errors.decode()
    seen = json.loads(out)
    assert (seen["live"], seen["ready"], seen["other"]) == (True, True, False)
    assert seen["metadata"]["inputs"] == [{"name": "image", "datatype": "FP32", "shape": [-1, 2, 2]}]
    assert seen["binary"] == seen["json"]
    assert seen["json"][2] == [2, 3]
    assert seen["version"] == "7"
    assert seen["index"] == [["6", "READY"], ["7", "READY"]]
    assert seen["stats"] == [6, 3]
    assert "statistics" in seen["extensions"]
    assert (site.hub.wishes[-1].priority, site.hub.wishes[-1].timeout_s) == (1, 0.25)
    assert site.hub.unloaded == set()

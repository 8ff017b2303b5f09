"""Ray Serve with the benchmark's model, batches to 16, one replica. `python ray_server.py PORT`."""

import signal
import sys
import time

import ray
from ray import serve


@serve.deployment(max_ongoing_requests=64)
class RayCostDeployment:
    @serve.batch(max_batch_size=16, batch_wait_timeout_s=0.005, max_concurrent_batches=1)
    async def predict(self, inputs):
        time.sleep(0.005 + 0.0002 * len(inputs))
        return [values[0] for values in inputs]

    async def __call__(self, request):
        asked = await request.json()
        return {"output": await self.predict(asked["input"])}


if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[1])})
    serve.run(RayCostDeployment.bind(), route_prefix="/predict")
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    serve.shutdown()
    ray.shutdown()

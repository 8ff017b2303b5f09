"""LitServe with the benchmark's model, batches to 16. `python litserve_server.py PORT`."""

import sys
import time

import litserve as ls


class LitServeCostApi(ls.LitAPI):
    def setup(self, device):
        pass

    def decode_request(self, request):
        return request["input"]

    def batch(self, inputs):
        return inputs

    def predict(self, inputs):
        time.sleep(0.005 + 0.0002 * len(inputs))
        return [values[0] for values in inputs]

    def unbatch(self, output):
        return output

    def encode_response(self, output):
        return {"output": output}


if __name__ == "__main__":
    server = ls.LitServer(LitServeCostApi(max_batch_size=16, batch_timeout=0.005), accelerator="cpu")
    server.run(host="127.0.0.1", port=int(sys.argv[1]), generate_client_file=False, log_level="warning")

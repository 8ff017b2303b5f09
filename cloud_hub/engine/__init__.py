"""Inference engines: the seam between the hub and what runs a model, and the engines of one process.

`base` defines the `Engine` protocol and its test double, `types` the values (`ModelCard`, `WorkItem`), `bundle` an
engine of a model bundle on top of ONNX Runtime (`onnx`) or PyTorch (`torch`), `factory` chooses between them, `worker`
holds the threads that call an engine. `sharded` spreads a model over several processes. May import `models`,
`policies.serving` and `wire`; nothing of the hub above it. Not pure, except `types` and the batch sizes in `bundle`.
"""

import wire  # noqa: F401 - switches off the telemetry of onnxruntime and Ray before an engine imports them

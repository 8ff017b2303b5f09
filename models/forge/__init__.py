"""The forge: turns a torch model and labelled samples into an installable model bundle.

Sub-folders in the order of the work: `data` (samples as arrays), `partition` (where to split the model), `training`
(bottleneck, early exit, gate), `export` (ONNX, precisions, codec), `evaluation` (accuracy, deferral, guarantees),
`leakage` (privacy attacks on the codes), `routes` (ways to code a question, and the frontier between them), `pipeline`
(the stages as one run) and `report` (the HTML page).
`spec` holds the request and the recipe digest, `cache` the finished stages on disk.

May import `models.bundle`, `models.runtime`, `models.graph`, `models.verification`, `policies` and `wire`; needs torch
and ONNX Runtime and runs on the developer's machine only. Not pure: reads and writes files and measures time.
"""

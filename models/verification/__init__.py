"""Verification of a bundle before it runs: lint of the ONNX graph, compatibility with the device, sandboxed first load.

`lint` judges the graph by the allow-list in `operators`, on what `onnx_reader` and `protobuf` parse without any
library; `compatibility` compares a bundle's requirements with the device; `sandbox` loads the bundle in a child
process with resource limits (`sandbox_child` is that process). It may import `models.bundle`, `models.runtime`,
`models.update.trust` and `wire`.
"""

"""Export of the device's half: ONNX graph, precisions, codec choice, and the manifest's input and output descriptions.

`onnx` exports the graph; `precisions` converts it to int8 and float16 with
`stored_weights`; `quantise` measures the candidates and chooses
one; `benchmark` times graphs and weighs their memory; `targets` lists the device profiles; `codec_choice` picks the
feature codec; `manifest` derives input, output and stage descriptions.

May import `models.bundle`, `models.runtime`, `models.verification`, `wire` and `forge.data`. Not pure: measures time
and starts a process to measure memory.
"""

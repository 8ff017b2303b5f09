"""Dividing a hub model among ranks: pipeline stages, tensor parallelism, and the sizes of what each rank holds.

`pipeline` cuts a graph into segments, `split` divides a segment's weights among ranks by the axis `rules`, `program`
puts both together, `weights` reads one rank's pieces of a safetensors file, `sizes` measures without reading weights.
Needs torch; it may import `models.bundle` and `models.graph`.
"""

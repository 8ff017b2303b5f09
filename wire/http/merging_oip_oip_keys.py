"""Does a request's JSON name a key twice? Two readers that disagree on which counts can be played against each other.

Law: decoding keeps the last of equal keys, so fewer are left than stand in the text. Numbers are skipped, not read.
"""

import re

import msgspec

_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"[ \t\r\n]*+(:)?')


class _Shape(msgspec.Struct):
    """What of a request may hold objects; everything else is counted by `_Top`."""

    inputs: list[dict[str, msgspec.Raw]] = []
    outputs: list[dict[str, msgspec.Raw]] = []
    parameters: dict[str, msgspec.Raw] = {}


_shape = msgspec.json.Decoder(_Shape)
_object = msgspec.json.Decoder(dict[str, msgspec.Raw])


def named_twice(text: bytes) -> bool:
    """`text` is a request that was decoded without complaint."""
    shape = _shape.decode(text)
    tensors = [*shape.inputs, *shape.outputs]
    kept = len(_object.decode(text)) + len(shape.parameters) + sum(len(tensor) for tensor in tensors)
    kept += sum(len(_object.decode(tensor["parameters"])) for tensor in tensors if "parameters" in tensor)
    return sum(1 for found in _STRING.finditer(text) if found[1]) > kept

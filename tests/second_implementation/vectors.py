"""Reading and writing of the frozen vectors in `tests/vectors`.

JSON, in which bytes are `{"$bytes": hex}` and a record is `{"$kind": its kind, ...its fields}`.
"""

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

from tests.second_implementation.records import Record

FOLDER = Path(__file__).parent.parent / "vectors"
DEVICE, EPOCH, SEQ, NOW_MS = "demo--cam-1", 0x1122334455667788, 41, 1_790_000_000_000


def fixed_bytes(name: str) -> bytes:
    """32 bytes that stand for what is drawn at random in use: keys, salts, digests."""
    return sha256(b"skerry test vectors: " + name.encode()).digest()


DEVICE_SIGNING, DEVICE_HPKE = fixed_bytes("device signing key"), fixed_bytes("device HPKE key")
HUB_SIGNING, HUB_HPKE = fixed_bytes("hub signing key"), fixed_bytes("hub HPKE key")


def load(name: str) -> Any:
    """The content of `tests/vectors/NAME`, a JSON file."""
    return from_json(json.loads((FOLDER / name).read_text(encoding="utf-8")))


def to_json(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"$bytes": value.hex()}
    if isinstance(value, Record):
        return {"$kind": value.kind, **to_json(value.fields)}
    if isinstance(value, dict):
        return {key: to_json(each) for key, each in value.items()}
    return [to_json(each) for each in value] if isinstance(value, list | tuple) else value


def from_json(value: Any) -> Any:
    if isinstance(value, list):
        return [from_json(each) for each in value]
    if not isinstance(value, dict):
        return value
    if "$bytes" in value:
        return bytes.fromhex(value["$bytes"])
    fields = {key: from_json(each) for key, each in value.items() if key != "$kind"}
    return Record(value["$kind"], fields) if "$kind" in value else fields

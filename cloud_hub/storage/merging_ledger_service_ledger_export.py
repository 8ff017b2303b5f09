"""What a hub has logged of one device, as a file that is checked without the hub: `skerry ledger verify --heads`.

Rule: every head comes with its path to one and the same signed checkpoint.
"""

import base64
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from cloud_hub.storage.ledger_log import HubLog, Logged
from wire.ledger.checkpoint import origin_of, signed

AT_ONCE = 10_000


def export(log: HubLog, hub: str, key: Ed25519PrivateKey, device: str, after: int = -1) -> dict[str, Any]:
    """Heads behind the index `after`, at most 10,000, oldest first. Bytes as base64, times in ms of hub time."""
    tree = log.tree()
    heads = [_head(each, log.inclusion(each.place, tree.size)) for each in log.of(device, after, AT_ONCE)]
    public = base64.b64encode(key.public_key().public_bytes_raw()).decode()
    return {"hub": hub, "key": public, "checkpoint": signed(origin_of(hub), tree, key), "heads": heads}


def _head(logged: Logged, proof: tuple[bytes, ...]) -> dict[str, Any]:
    leaf = {name: getattr(logged.leaf, name) for name in logged.leaf.__struct_fields__}
    told = {name: text_of(value) if isinstance(value, bytes) else value for name, value in leaf.items()}
    path = [text_of(each) for each in proof]
    return {"index": logged.place, **told, "epoch": f"{logged.leaf.epoch:x}", "flaw": logged.flaw, "inclusion": path}


def text_of(data: bytes) -> str:
    return base64.b64encode(data).decode()

"""MQTT topic names, device ids and the broker's access rules; no other module writes a topic string. Pure.

``v1/{shard}/{id}/up/{q,ask,state,report}`` is published by the device, ``v1/{shard}/{id}/down/{r,desired}`` by the hub.
id = ``tenant--device``; shard = first byte of SHA-256(id) in hex, fixed for ever.
"""

import re
from enum import StrEnum
from functools import lru_cache
from hashlib import sha256

from wire.errors import Fault, LocalError, RemoteError

MAX_ID_CHARS = 64
HUB_NAME = "hub"  # of the first hub of a region, or its only one, at the broker and beside the others
HUB_NAMES = (HUB_NAME, *(f"{HUB_NAME}-{number}" for number in range(2, 17)))  # none is a device's: no `--` in it
_ID = re.compile(r"[a-z0-9-]{1,64}")
_PART = re.compile(r"[a-z0-9](?:[a-z0-9]|-(?!-))*(?<!-)")
DEVICE_ID_PATTERN = "[a-z0-9]+(-[a-z0-9]+)*--[a-z0-9]+(-[a-z0-9]+)*"  # for readers without Python; ECMA 262
_TOPIC = re.compile(r"v1/([0-9a-f]{2})/([a-z0-9-]{1,64})/up/(q|ask|state|report)")


class TopicChannel(StrEnum):
    """Last part of a topic. It is signed with the message, so that none can be moved to another topic."""

    QUESTION = "up/q"
    ASK = "up/ask"
    STATE = "up/state"
    REPORT = "up/report"
    REPLY = "down/r"
    DESIRED = "down/desired"


def join_device_id(tenant: str, device: str) -> str:
    """Join a tenant and a device name to a device id.

    `--` is the separator and so may stand in neither. Raises LocalError for a part that is no name, or an id of more
    than `MAX_ID_CHARS` characters.
    """
    for part in (tenant, device):
        if not _PART.fullmatch(part):
            raise LocalError(f"{part!r}: use a-z, 0-9 and single dashes inside")
    joined = f"{tenant}--{device}"
    if len(joined) > MAX_ID_CHARS:
        raise LocalError(f"{joined!r} has {len(joined)} characters, at most {MAX_ID_CHARS}")
    return joined


def extract_tenant(device: str) -> str:
    """Tenant part of a device id; the whole id if it has no separator."""
    return device.split("--", 1)[0]


def validate_device_id(device: str) -> str:
    """Return the id if it may stand as one whole topic level; raises LocalError otherwise."""
    if not _ID.fullmatch(device):
        raise LocalError(f"device id {device!r}: 1 to {MAX_ID_CHARS} of a-z, 0-9 and dash")
    return device


@lru_cache(maxsize=4096)
def compute_shard(device: str) -> int:
    """Shard number of a device, 0 to 255: the first byte of SHA-256(id)."""
    return sha256(device.encode()).digest()[0]


def build_topic(device: str, channel: TopicChannel) -> str:
    """Topic of a device's channel. Raises LocalError for an invalid device id."""
    checked = validate_device_id(device)  # first: an id that is no text at all has no shard either
    return f"v1/{compute_shard(checked):02x}/{checked}/{channel}"


def parse_up_topic(received: str) -> tuple[str, TopicChannel]:
    """Parse the topic of a device's message into (device, channel).

    Raises RemoteError(TOPIC) if it is none, or if its shard is not the device's own.
    """
    match = _TOPIC.fullmatch(received)
    if not match:
        raise RemoteError(Fault.TOPIC, received[:80])
    device = match[2]
    if int(match[1], 16) != compute_shard(device):
        raise RemoteError(Fault.TOPIC, f"shard {match[1]} is not the shard of {device}")
    return device, TopicChannel(f"up/{match[3]}")


def list_hub_filters() -> tuple[str, ...]:
    """MQTT topic filters that a hub which owns every shard subscribes to."""
    return tuple(
        f"v1/+/+/{channel}"
        for channel in (TopicChannel.QUESTION, TopicChannel.ASK, TopicChannel.STATE, TopicChannel.REPORT)
    )


def build_shard_filter(shard: int) -> str:
    """MQTT topic filter of everything that the devices of a shard publish; overlaps with no other shard's."""
    return f"v1/{shard:02x}/+/up/+"


def render_broker_acl() -> str:
    """Access control list for Mosquitto: whole-level `%u` patterns, and every hub that a region may have.

    So neither an enrolment nor a hub that joins reloads the broker.
    """
    hubs = "".join(f"user {name}\ntopic read v1/+/+/up/#\ntopic write v1/+/+/down/#\n\n" for name in HUB_NAMES)
    return f"{hubs}pattern write v1/+/%u/up/+\npattern read v1/+/%u/down/+\n"

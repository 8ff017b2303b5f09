"""Discovery messages of Home Assistant's MQTT integration for the answers of one output. Pure.

Each entity is announced by a retained message at PREFIX/COMPONENT/UNIQUE_ID/config, all of them as parts of one device,
and taken away by an empty retained message there (home-assistant.io/integrations/mqtt: single component discovery).
"""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from models.bundle.manifest import Manifest, ModelKind

MAX_SCORE_ENTITIES = 32  # a model of more labels has no entity for the score of each
ONLINE, OFFLINE = b"online", b"offline"
_NOT_IN_IDS = re.compile(r"[^A-Za-z0-9_-]")
_DETAILS = ("answer_id", "kind", "reason", "data_class", "model_version", "at_ms")


class DiscoverySource(NamedTuple):
    """What is announced: the topics of an output, and names.

    `title`: the device's name on the pages of Home Assistant. `software`: our own version.
    """

    prefix: str
    device: str
    output: str
    title: str
    state_topic: str
    availability_topic: str
    software: str


class _Entity(NamedTuple):
    """One entity: its component (`sensor`, `binary_sensor`), its name among ours, and its options."""

    component: str
    key: str
    options: dict[str, Any]


def build_discovery(source: DiscoverySource, manifest: Manifest) -> dict[str, dict[str, Any]]:
    """Every discovery message of an output by its topic, for the model that answers."""
    shared = {
        "state_topic": source.state_topic,
        "availability_topic": source.availability_topic,
        "payload_available": ONLINE.decode(),
        "payload_not_available": OFFLINE.decode(),
        "device": {
            "identifiers": [f"skerry_{make_id(source.device)}"],
            "name": source.title or source.device,
            "manufacturer": "Skerry",
            "model": manifest.name,
            "sw_version": str(manifest.version),
        },
        "origin": {"name": "Skerry", "sw_version": source.software},
    }
    messages = {}
    for entity in _list_entities(manifest, source.state_topic):
        unique_id = make_id(f"skerry_{source.device}_{source.output}_{entity.key}")
        topic = f"{source.prefix}/{entity.component}/{unique_id}/config"
        messages[topic] = {"unique_id": unique_id, **entity.options, **shared}
    return messages


def make_id(text: str) -> str:
    """A text as Home Assistant takes it for an id or one level of a discovery topic."""
    return _NOT_IN_IDS.sub("_", text)


def _list_entities(manifest: Manifest, state_topic: str) -> Iterator[_Entity]:
    if manifest.kind is ModelKind.REGRESSOR:
        options = {"name": "Value", "state_class": "measurement", "value_template": "{{ value_json.value }}"}
        yield _Entity("sensor", "value", {**options, **_explain_state(state_topic)})
    else:
        label = {
            "name": "Label", "device_class": "enum", "options": list(manifest.labels),
            "value_template": "{{ value_json.label_name }}",
        }  # fmt: skip
        yield _Entity("sensor", "label", {**label, **_explain_state(state_topic)})
        yield from _list_scores(manifest)
    yield _Entity("sensor", "confidence", {"name": "Confidence", **_percentage("value_json.confidence")})
    yield _Entity(
        "sensor", "source",
        {
            "name": "Answered by", "device_class": "enum", "options": ["local", "hub"],
            "value_template": "{{ value_json.source }}", "entity_category": "diagnostic",
        },
    )  # fmt: skip
    yield _Entity(
        "binary_sensor", "unfamiliar",
        {
            "name": "Unfamiliar sample", "device_class": "problem", "entity_category": "diagnostic",
            "value_template": "{{ 'ON' if value_json.in_domain == false else 'OFF' }}",
        },
    )  # fmt: skip


def _list_scores(manifest: Manifest) -> Iterator[_Entity]:
    """The score of each label, which a user switches on where it is wanted."""
    if len(manifest.labels) > MAX_SCORE_ENTITIES:
        return
    for place, name in enumerate(manifest.labels):
        options = {"name": f"Score of {name}", "enabled_by_default": False, "entity_category": "diagnostic"}
        yield _Entity("sensor", f"score_{place}", {**options, **_percentage(f"value_json.scores[{place}]")})


def _percentage(value: str) -> dict[str, Any]:
    return {
        "unit_of_measurement": "%", "state_class": "measurement", "suggested_display_precision": 1,
        "value_template": f"{{{{ ({value} * 100) | round(2) }}}}",
    }  # fmt: skip


def _explain_state(state_topic: str) -> dict[str, Any]:
    """The facts of an answer as attributes of its entity."""
    facts = ", ".join(f"'{key}': value_json.{key}" for key in _DETAILS)
    return {"json_attributes_topic": state_topic, "json_attributes_template": f"{{{{ {{{facts}}} | tojson }}}}"}

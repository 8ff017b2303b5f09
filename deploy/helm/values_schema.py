"""Schema of the chart's values: what the chart knows, and under `config` the tables of hub.toml as the hub has them.

`python deploy/helm/values_schema.py` writes `deploy/helm/skerry/values.schema.json`; a test holds the file against the
code. Rule: closed. A key that the chart or the hub does not know is refused, and so is a key of hub.toml that the chart
sets itself.
"""

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FILE = Path(__file__).parent / "skerry" / "values.schema.json"
sys.path.insert(0, str(ROOT))

from cloud_hub.runtime.config import HubConfig  # noqa: E402 - of this checkout, wherever it is called from

Schema = dict[str, Any]
# Keys of hub.toml that are not for the values: the chart sets them.
SET_BY_CHART = {
    "": {"state", "models", "models_folder", "broker"},
    "HubSection": {"member", "drain_s", "leave_file"},
    "ApiSection": {"host", "port", "unix", "names", "tls", "tls_cert", "tls_key", "url"},
    "StoreSection": {"url"},
    "RaySection": {"address", "nodes", "host", "ports"},
}
_KEY = r"^[-._a-zA-Z0-9]{1,253}$"
_NAME = r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$"
_NAME_OR_NOT = r"^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?)?$"
_HOST = r"^[A-Za-z0-9:]([A-Za-z0-9.:-]{0,251}[A-Za-z0-9:])?$"
_HOST_OR_NOT = r"^([A-Za-z0-9:]([A-Za-z0-9.:-]{0,251}[A-Za-z0-9:])?)?$"
_QUANTITY = r"^[0-9]+(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti)?$"
# Without a password: that is a Secret's.
_STORE_URL = r"^(postgresql\+psycopg://[^\s:@/?#]+@[^\s:@/?#,]+(:[0-9]{1,5})?/[^\s/?#]+(\?\S*)?)?$"


def closed(properties: Schema, required: tuple[str, ...] = ()) -> Schema:
    """An object that takes no other key."""
    found: Schema = {"type": "object", "additionalProperties": False, "properties": properties}
    return {**found, "required": list(required)} if required else found


def text(pattern: str = "", *choices: str) -> Schema:
    """A string: of a pattern, one of some choices, or any."""
    return {
        "type": "string",
        **({"pattern": pattern} if pattern else {}),
        **({"enum": list(choices)} if choices else {}),
    }


def whole(least: int, most: int) -> Schema:
    """A whole number."""
    return {"type": "integer", "minimum": least, "maximum": most}


def many(items: Schema) -> Schema:
    """A list."""
    return {"type": "array", "items": items}


TEXTS: Schema = {"type": "object", "additionalProperties": {"type": "string"}}
FLAG: Schema = {"type": "boolean"}
AS_KUBERNETES: Schema = {"type": "object"}  # whatever the field of the same name takes; the API server checks it
SECRET = closed({"name": text(_NAME_OR_NOT), "key": text(_KEY)})
AMOUNTS: Schema = {"type": "object", "additionalProperties": {"type": ["string", "integer"], "pattern": _QUANTITY}}
WHOLE_CORES: Schema = {**AMOUNTS, "required": ["cpu"], "properties": {"cpu": {"pattern": "^[1-9][0-9]*$"}}}
RESOURCES = closed({"requests": AMOUNTS, "limits": AMOUNTS})
SPREAD = text("", "ScheduleAnyway", "DoNotSchedule")
SERVICE = closed({"type": text("", "ClusterIP", "NodePort", "LoadBalancer"), "annotations": TEXTS})


def describe_config() -> tuple[Schema, Schema]:
    """The schema of `config`, and the definitions that it refers to."""
    found = HubConfig.model_json_schema()
    definitions: Schema = {name: dict(each) for name, each in found["$defs"].items() if name != "BrokerSection"}
    definitions[""] = {"properties": found["properties"]}
    for name, keys in SET_BY_CHART.items():
        properties = definitions[name]["properties"]
        definitions[name]["properties"] = {key: each for key, each in properties.items() if key not in keys}
    config = closed(definitions.pop("")["properties"])
    return _strip(config), _strip(definitions)


def _strip(schema: Any) -> Any:
    """Without titles, defaults and descriptions, which helm does not read."""
    if isinstance(schema, list):
        return [_strip(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {
        key: _strip(value) for key, value in schema.items() if key not in {"title", "default", "description", "format"}
    }
    if "properties" in schema:
        kept["properties"] = {name: _strip(each) for name, each in schema["properties"].items()}
    return kept


def describe_values() -> Schema:
    """Every value of the chart, without the conditions between them."""
    return {**_describe_region(), **_describe_doors(), **_describe_scale(), **_describe_surroundings()}


def _describe_region() -> Schema:
    """What the hubs are and keep: image, number, store, secrets and files."""
    return {
        "image": closed(
            {
                "repository": text(r"^[a-z0-9][a-z0-9._:/-]*$"),
                "tag": text(r"^([A-Za-z0-9_][A-Za-z0-9._-]{0,127})?$"),
                "digest": text(r"^(sha256:[0-9a-f]{64})?$"),
                "pullPolicy": text("", "Always", "IfNotPresent", "Never"),
                "pullSecrets": many(text(_NAME)),
            }
        ),
        "replicas": whole(1, 16),
        "store": closed({"url": text(_STORE_URL), "passwordSecret": SECRET, "caSecret": SECRET}),
        "region": closed({"keySecret": SECRET}),
        "adminSecret": SECRET,
        "bundles": closed({"claim": text(_NAME_OR_NOT), "image": text(), "writable": FLAG}),
        "secretFiles": many(
            closed(
                {
                    "secret": text(_NAME),
                    "key": text(_KEY),
                    "file": text(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"),
                },
                ("secret", "key", "file"),
            )
        ),
        "state": closed(
            {
                "persistent": FLAG,
                "size": text(_QUANTITY),
                "storageClass": text(_NAME_OR_NOT),
                "whenScaled": text("", "Retain", "Delete"),
            }
        ),
    }


def _describe_doors() -> Schema:
    """Where hubs and broker are reached."""
    return {
        "api": closed(
            {
                "listen": text("", "0.0.0.0", "::"),  # noqa: S104 - of a pod
                "url": text(r"^(https://\S{1,500})?$"),
                "names": many(text(_HOST)),
                "service": SERVICE,
            }
        ),
        "broker": closed(
            {
                "kind": text("", "child", "mosquitto", "external"),
                "host": text(_HOST_OR_NOT),
                "port": whole(1024, 65535),
                "devices": whole(1, 1_000_000),
                "address": text(_HOST_OR_NOT),
                "names": many(text(_HOST)),
                "service": SERVICE,
                "resources": RESOURCES,
            }
        ),
    }


def _describe_scale() -> Schema:
    """How long hubs may take, what they get, and how many there are."""
    return {
        "drainSeconds": whole(1, 300),
        "preStopSeconds": whole(0, 120),
        "startSeconds": whole(10, 3600),
        "resources": RESOURCES,
        "autoscaling": closed(
            {
                "kind": text("", "none", "keda", "hpa"),
                "min": whole(1, 16),
                "max": whole(1, 16),
                "replicasPerHub": whole(1, 64),
                "downAfterSeconds": whole(0, 3600),
                "prometheus": text(r"^(https?://\S{1,500})?$"),
                "query": text(),
                "models": many(text(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}(@[1-9][0-9]{0,18})?$")),
            }
        ),
        "ray": closed(
            {
                "enabled": FLAG,
                "nodes": whole(1, 64),
                "tokenSecret": SECRET,
                "resources": closed({"requests": AMOUNTS, "limits": WHOLE_CORES}),
                "headResources": RESOURCES,
            }
        ),
    }


def _describe_surroundings() -> Schema:
    """Who may talk to whom, who watches, and where pods may run."""
    return {
        "networkPolicy": closed(
            {
                "enabled": FLAG,
                "from": many(AS_KUBERNETES),
                "metricsFrom": many(AS_KUBERNETES),
                "egress": many(AS_KUBERNETES),
            }
        ),
        "serviceMonitor": closed(
            {
                "enabled": FLAG,
                "interval": text(r"^[0-9]+(s|m)$"),
                "labels": TEXTS,
                "caSecret": SECRET,
                "tokenSecret": SECRET,
            }
        ),
        "podDisruptionBudget": closed({"maxUnavailable": whole(0, 15)}),
        "topologySpread": closed({"zones": SPREAD, "nodes": SPREAD}),
        "nodeSelector": TEXTS,
        "tolerations": many(AS_KUBERNETES),
        "affinity": AS_KUBERNETES,
        "priorityClassName": text(_NAME_OR_NOT),
        "podLabels": TEXTS,
        "podAnnotations": TEXTS,
        "global": AS_KUBERNETES,  # helm adds it
    }


def at(path: str, schema: Schema, *, needed: bool = False) -> Schema:
    """A schema at `a.b` of the values; `needed`: it has to be there, too."""
    for name in reversed(path.split(".")):
        schema = {"properties": {name: schema}, **({"required": [name]} if needed else {})}
    return schema


def when(path: str, value: Schema, *then: Schema) -> Schema:
    """A condition: where the value at `path` is so, all of `then` hold."""
    merged: Schema = {}
    for each in then:
        _merge(merged, each)
    return {"if": at(path, value), "then": merged}


def _merge(into: Schema, more: Schema) -> None:
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value


SOME: Schema = {"minLength": 1}
NONE: Schema = {"const": ""}
SCALED = at("config.scaling.models", {"minProperties": 1}, needed=True)  # else the hubs say no figure
CONDITIONS = [
    when(
        "store.url",
        NONE,  # SQLite is one hub's
        at("replicas", {"const": 1}),
        at("autoscaling.kind", {"const": "none"}),
        at("broker.kind", {"enum": ["child", "external"]}),
        at("state.persistent", {"const": True}),
    ),
    when(
        "store.url",
        SOME,
        at("region.keySecret.name", SOME),
        at("broker.kind", {"enum": ["mosquitto", "external"]}),
    ),
    when("broker.kind", {"const": "external"}, at("broker.host", SOME)),
    when("bundles.claim", SOME, at("bundles.image", NONE)),
    when("bundles.writable", {"const": True}, at("bundles.claim", SOME)),
    {
        "if": {"allOf": [at("bundles.claim", NONE), at("bundles.image", NONE)]},
        "then": at("config.llm", {"minItems": 1}, needed=True),
    },
    when("autoscaling.kind", {"const": "keda"}, at("autoscaling.prometheus", SOME), SCALED),
    when("autoscaling.kind", {"const": "hpa"}, at("autoscaling.models", {"minItems": 1}), SCALED),
    when(
        "ray.enabled",
        {"const": True},
        at("replicas", {"const": 1}),
        at("autoscaling.kind", {"const": "none"}),
        at("ray.tokenSecret.name", SOME),
    ),
    when(
        "serviceMonitor.enabled",
        {"const": True},
        at("serviceMonitor.caSecret.name", SOME),
        at("serviceMonitor.tokenSecret.name", SOME),
    ),
]


def build_schema() -> Schema:
    """The whole schema."""
    config, definitions = describe_config()
    values = describe_values()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Values of the chart skerry; made by deploy/helm/values_schema.py",
        **closed({**values, "config": config}, ("image",)),
        "$ref": "#/$defs/condition1",
        "$defs": {**definitions, **chain_conditions()},
    }


def chain_conditions() -> Schema:
    """The conditions, each of which refers to the next one: an `allOf` would be a line of its own in a refusal."""
    count = len(CONDITIONS)
    chained = ({**each, "$ref": f"#/$defs/condition{place + 1}"} for place, each in enumerate(CONDITIONS[:-1], 1))
    return {f"condition{place}": each for place, each in enumerate((*chained, CONDITIONS[count - 1]), 1)}


def render_schema() -> str:
    """The text of the file."""
    return json.dumps(build_schema(), indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    FILE.write_text(render_schema(), encoding="utf-8")

"""Validates rendered manifests: `python validate.py VERSIONS FILE...`, in the environment of `tools.py`.

Prints one JSON object for each document: its file, kind, name, what it was checked by, and the faults found. Kinds of
Kubernetes itself are checked strictly by the schemas of each release named in VERSIONS (`1.29,1.33`); those of KEDA and
of Prometheus' operator by models made from their definitions, with unknown keys refused; those of KubeRay by the subset
in `kuberay.schema.json`. A kind that nothing here knows is a fault: the validator alone would only warn of it.
"""

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import yaml

MODELS = {
    "keda.sh/v1alpha1": "cloudcoil.models.keda.v1alpha1",
    "monitoring.coreos.com/v1": "cloudcoil.models.prometheus_operator.v1",
}
SUBSETS = {"ray.io/v1": Path(__file__).parent / "kuberay.schema.json"}


def check_release(document: dict[str, Any], version: str) -> list[str]:
    """Faults of a document by the schemas of a release of Kubernetes."""
    try:
        kubernetes_validate.validate(document, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        return [f"{version}: {'.'.join(map(str, error.path))}: {error.message}"]
    except kubernetes_validate.SchemaNotFoundError:
        return [f"{version}: no schema of {document['apiVersion']} {document['kind']}"]
    return []


def check_model(document: dict[str, Any], module: str) -> list[str]:
    """Faults of a document by the model of its kind; an unknown key is one."""
    base = importlib.import_module("cloudcoil.pydantic").BaseModel
    base.model_config["extra"] = "forbid"  # before the models are made from it
    pydantic = importlib.import_module("pydantic")
    try:
        getattr(importlib.import_module(module), document["kind"]).model_validate(document)
    except pydantic.ValidationError as error:
        return [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()]
    return []


def check_subset(document: dict[str, Any], file: Path) -> list[str]:
    """Faults of a document by the part of its definition that is written down here."""
    checker = jsonschema.Draft202012Validator(json.loads(file.read_text(encoding="utf-8")))
    return [f"{'.'.join(map(str, error.path))}: {error.message}" for error in checker.iter_errors(document)]


def check_document(document: dict[str, Any], versions: list[str]) -> tuple[str, list[str]]:
    """By what a document was checked, and its faults."""
    kind = document["apiVersion"]
    if kind in MODELS:
        return MODELS[kind], check_model(document, MODELS[kind])
    if kind in SUBSETS:
        pods = [(each, check_release(as_pod(each), version)) for each in find_pods(document) for version in versions]
        return SUBSETS[kind].name, check_subset(document, SUBSETS[kind]) + [
            fault for _, found in pods for fault in found
        ]
    return "Kubernetes", [fault for version in versions for fault in check_release(document, version)]


def find_pods(value: Any) -> Iterator[dict[str, Any]]:
    """Pod templates anywhere in a document."""
    if isinstance(value, dict):
        if isinstance(value.get("template"), dict) and "spec" in value["template"]:
            yield value["template"]
        for each in value.values():
            yield from find_pods(each)
    elif isinstance(value, list):
        for each in value:
            yield from find_pods(each)


def as_pod(template: dict[str, Any]) -> dict[str, Any]:
    """A pod template as a document of its own."""
    return {"apiVersion": "v1", "kind": "Pod", **template}


def main() -> int:
    """1 if a document has a fault."""
    versions, faulty = sys.argv[1].split(","), 0
    for name in sys.argv[2:]:
        for document in yaml.safe_load_all(Path(name).read_text(encoding="utf-8")):
            if document is None:
                continue
            by, faults = check_document(document, versions)
            faulty += bool(faults)
            found = {
                "file": name,
                "kind": document["kind"],
                "name": document["metadata"]["name"],
                "by": by,
                "faults": faults,
            }
            print(json.dumps(found))
    return 1 if faulty else 0


if __name__ == "__main__":
    sys.exit(main())

"""The chart, linted and rendered by the real helm; its manifests by the schemas of three releases of Kubernetes.

No test asks a cluster, and none calls kubectl: without a configuration it would talk to port 8080 of this machine.
"""

import json
import re
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from cloud_hub.runtime.config import HubConfig
from cloud_hub.system.config_base import build_config
from tests import ROOT
from tests.live.doubles.chart import CHART, EXAMPLES, Document, helm, pick, refusal, render, template, validate
from tests.live.doubles.kubelet import find_pod_specs

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

ALWAYS = {"ServiceAccount": 1, "ConfigMap": 1, "StatefulSet": 1, "PodDisruptionBudget": 1}
BROKER = {"Deployment": 1, "NetworkPolicy": 2, "Service": 3}
KINDS: dict[str, dict[str, int]] = {
    "one-hub": {**ALWAYS, "NetworkPolicy": 1, "Service": 3},
    "region": {**ALWAYS, **BROKER},
    "scaled": {**ALWAYS, **BROKER, "ScaledObject": 1, "ServiceMonitor": 1},
    "adapter": {**ALWAYS, "NetworkPolicy": 1, "Service": 2, "HorizontalPodAutoscaler": 1},
    "language": {**ALWAYS, "NetworkPolicy": 1, "Service": 3},
    "ray": {**ALWAYS, "NetworkPolicy": 2, "Service": 3, "RayCluster": 1},
}
IMAGE = "image: {repository: registry.example/hub}\n"
ONE = f"{IMAGE}bundles: {{claim: bundles}}\n"
REGION = f"""{ONE}
store: {{url: postgresql+psycopg://hub@db.example/skerry}}
region: {{keySecret: {{name: skerry-region}}}}
broker: {{kind: mosquitto}}
"""


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Document]]:
    return {path.stem: render(path) for path in EXAMPLES}


def test_there_are_five_sets_of_values_or_more():
    assert {path.stem for path in EXAMPLES} == set(KINDS)
    assert len(KINDS) >= 5


@pytest.mark.parametrize("values", EXAMPLES, ids=lambda path: path.stem)
def test_helm_lints_the_chart_strictly(values: Path):
    done = helm("lint", "--strict", CHART, "--values", values)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 chart(s) linted, 0 chart(s) failed" in done.stdout


@pytest.mark.parametrize("name", KINDS)
def test_the_manifests_are_of_the_kinds_that_the_values_ask_for(rendered, name):
    assert Counter(document["kind"] for document in rendered[name]) == KINDS[name]


def test_every_manifest_of_every_set_is_valid_for_three_releases_of_kubernetes(rendered, tmp_path):
    files = []
    for name, documents in rendered.items():
        files.append(tmp_path / f"{name}.yaml")
        files[-1].write_text(yaml.safe_dump_all(documents))
    found = validate(files)
    assert len(found) == sum(map(len, rendered.values()))
    assert [each for each in found if each["faults"]] == []
    by = {each["kind"]: each["by"] for each in found}
    assert by.pop("ScaledObject") == "cloudcoil.models.keda.v1alpha1"
    assert by.pop("RayCluster") == "kuberay.schema.json"
    assert by.pop("ServiceMonitor") == "cloudcoil.models.prometheus_operator.v1"
    assert set(by.values()) == {"Kubernetes"}


def test_the_validator_refuses_what_a_cluster_would(rendered, tmp_path):
    """A key that nobody knows, a value of the wrong shape, a kind that is none: the check itself can fail."""
    wrong: list[tuple[Document, str]] = []
    for kind, spoil in {
        "StatefulSet": lambda d: d["spec"]["template"]["spec"]["containers"][0].update(readynessProbe={}),
        "PodDisruptionBudget": lambda d: d["spec"].update(maxUnavailable=[1]),
        "ScaledObject": lambda d: d["spec"].update(maxReplicas=3),
        "ServiceMonitor": lambda d: d["spec"].update(endpoints="api"),
        "ConfigMap": lambda d: d.update(kind="ConfigurationMap"),
    }.items():
        document = json.loads(json.dumps(pick(rendered["scaled"], kind)))
        spoil(document)
        wrong.append((document, kind))
    for spoil in (
        lambda d: d["spec"].update(headGroup={}),
        lambda d: d["spec"]["workerGroupSpecs"][0]["template"]["spec"]["containers"][0].update(imagine="x"),
    ):
        document = json.loads(json.dumps(pick(rendered["ray"], "RayCluster", "skerry-ray")))
        spoil(document)
        wrong.append((document, "RayCluster"))
    (tmp_path / "wrong.yaml").write_text(yaml.safe_dump_all([document for document, _ in wrong]))
    found = validate([tmp_path / "wrong.yaml"])
    assert len(found) == len(wrong)
    assert [each["kind"] for each in found if not each["faults"]] == []


@pytest.mark.parametrize("name", KINDS)
def test_nothing_runs_as_root_or_writes_to_its_image_or_asks_the_cluster(rendered, name):
    for spec in find_pod_specs(rendered[name]):
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] > 10000
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in (*spec["containers"], *spec.get("initContainers", [])):
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"] is True
            assert security["allowPrivilegeEscalation"] is False
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert "memory" in container["resources"]["limits"]


@pytest.mark.parametrize("name", KINDS)
def test_a_secret_is_named_and_never_written(rendered, name):
    assert not [document for document in rendered[name] if document["kind"] == "Secret"]
    for spec in find_pod_specs(rendered[name]):
        for container in spec["containers"]:
            told = [each["name"] for each in container.get("env", []) if "value" in each]
            assert not [each for each in told if re.search("PASSWORD|TOKEN|KEY", each)]


@pytest.mark.parametrize("name", KINDS)
def test_a_pod_has_longer_to_end_than_its_hub_needs_to_drain(rendered, name):
    spec = pick(rendered[name], "StatefulSet")["spec"]["template"]["spec"]
    drain_s = tomllib.loads(pick(rendered[name], "ConfigMap")["data"]["hub.toml"])["hub"]["drain_s"]
    before = spec["containers"][0].get("lifecycle", {}).get("preStop", {"exec": {"command": ["sleep", "0"]}})
    assert spec["terminationGracePeriodSeconds"] >= drain_s + int(before["exec"]["command"][1]) + 10


def test_mosquitto_sees_neither_the_database_nor_the_regions_key(rendered):
    spec = pick(rendered["region"], "Deployment", "skerry-mqtt")["spec"]["template"]["spec"]
    (broker,) = spec["containers"]
    assert "env" not in broker
    assert {each["name"] for each in broker["volumeMounts"]} == {"broker", "mosquitto-tmp"}


def test_only_what_is_listed_reaches_a_hub(rendered):
    policy = pick(rendered["scaled"], "NetworkPolicy")["spec"]
    (web,) = policy["ingress"]
    monitoring = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    assert web == {"from": [{"podSelector": {}}, monitoring], "ports": [{"port": 8080}]}
    assert [each["ports"][0]["port"] for each in policy["egress"]] == [53, 5432, 18883]


def test_rays_nodes_are_reached_by_the_hub_and_by_one_another_alone(rendered):
    policy = pick(rendered["ray"], "NetworkPolicy", "skerry-ray")["spec"]
    components = [
        peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"] for peer in policy["ingress"][0]["from"]
    ]
    assert components == ["ray", "hub"]
    text = pick(rendered["ray"], "ConfigMap")["data"]["hub.toml"]
    assert tomllib.loads(text)["ray"]["address"] == "skerry-ray-head-svc.edge.svc:6379"
    (worker,) = pick(rendered["ray"], "RayCluster", "skerry-ray")["spec"]["workerGroupSpecs"]
    (container,) = worker["template"]["spec"]["containers"]
    assert worker["rayStartParams"]["num-cpus"] == container["resources"]["limits"]["cpu"]


def test_a_scaler_reads_the_sum_that_the_hubs_say_and_owns_the_number(rendered):
    scaled = pick(rendered["scaled"], "ScaledObject")["spec"]
    assert scaled["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "skerry"}
    (trigger,) = scaled["triggers"]
    assert trigger["metadata"]["query"].startswith("max(sum by (model) (skerry_hub_replicas_needed{")
    assert trigger["metricType"] == "AverageValue"
    metric = pick(rendered["adapter"], "HorizontalPodAutoscaler")["spec"]["metrics"][0]["external"]["metric"]["name"]
    assert f'"{metric}"' in (ROOT / "cloud_hub" / "api" / "monitoring.py").read_text()
    for name in ("scaled", "adapter"):
        assert "replicas" not in pick(rendered[name], "StatefulSet")["spec"]


def test_a_release_of_another_name_has_names_of_its_own(tmp_path):
    documents = list(yaml.safe_load_all(template(EXAMPLES[0], name="north")))
    assert {document["metadata"]["name"].removeprefix("north-skerry") for document in documents} <= {
        "",
        "-hubs",
        "-mqtt",
    }


WRONG: list[tuple[str, str]] = [
    (f"{ONE}replica: 3\n", "additional properties 'replica' not allowed"),
    (f"{ONE}replicas: 3\n", "at '/replicas': value must be 1"),
    (f"{REGION}replicas: 17\n", "at '/replicas': maximum: got 17, want 16"),
    (f"{ONE}autoscaling: {{kind: keda, prometheus: http://p}}\n", "at '/autoscaling/kind': value must be 'none'"),
    (f"{REGION}autoscaling: {{kind: keda}}\n", "at '/autoscaling/prometheus': minLength: got 0, want 1"),
    (f"{REGION}autoscaling: {{kind: keda, prometheus: http://p}}\n", "at '/config': missing property 'scaling'"),
    (f"{ONE}state: {{persistent: false}}\n", "at '/state/persistent': value must be true"),
    (f"{ONE}broker: {{kind: mosquitto}}\n", "at '/broker/kind': value must be one of 'child', 'external'"),
    (f"{ONE}broker: {{kind: external}}\n", "at '/broker/host': minLength: got 0, want 1"),
    ("bundles: {claim: bundles}\n", "at '/image/repository'"),
    (IMAGE, "at '/config': missing property 'llm'"),
    (f"{ONE}config: {{hub: {{max_quued: 3}}}}\n", "at '/config/hub': additional properties 'max_quued' not allowed"),
    (f"{ONE}config: {{hub: {{max_queued: 0}}}}\n", "at '/config/hub/max_queued': minimum: got 0, want 1"),
    (f"{ONE}config: {{state: /tmp}}\n", "at '/config': additional properties 'state' not allowed"),
    (f"{ONE}config: {{api: {{tls: false}}}}\n", "at '/config/api': additional properties 'tls' not allowed"),
    (
        REGION.replace("hub@db", "hub:password@db"),
        "at '/store/url'",
    ),
    (REGION.replace("keySecret: {name: skerry-region}", ""), "at '/region/keySecret/name': minLength: got 0, want 1"),
    (f"{ONE}serviceMonitor: {{enabled: true}}\n", "at '/serviceMonitor/caSecret/name': minLength: got 0, want 1"),
    (f"{ONE}resources: {{limits: {{memory: lots}}}}\n", "at '/resources/limits/memory'"),
    (f"{ONE}drainSeconds: 5s\n", "at '/drainSeconds': got string, want integer"),
    (f"{ONE}ray: {{enabled: true}}\n", "at '/ray/tokenSecret/name': minLength: got 0, want 1"),
    (f"{ONE}ray: {{resources: {{limits: {{cpu: 500m}}}}}}\n", "at '/ray/resources/limits/cpu'"),
    (f"{IMAGE}bundles: {{claim: a, image: b}}\n", "at '/bundles/image': value must be ''"),
]


@pytest.mark.parametrize(("values", "said"), WRONG, ids=[said for _, said in WRONG])
def test_a_value_that_cannot_be_is_refused_in_one_line_and_nothing_is_rendered(tmp_path, values, said):
    (tmp_path / "values.yaml").write_text(values)
    lines = refusal(tmp_path / "values.yaml")
    assert [line for line in lines if said in line], lines


def test_what_is_right_beside_what_is_wrong_is_not_blamed(tmp_path):
    (tmp_path / "values.yaml").write_text(f"{REGION}replicas: 3\nreplica: 3\n")
    (line,) = refusal(tmp_path / "values.yaml")
    assert "'replica'" in line


def test_numbers_of_hub_toml_arrive_as_the_hub_reads_them(tmp_path: Path):
    whole: dict[str, Any] = {"hub": {"max_queued": 4097, "held_back": 0.25}, "api": {"max_body_bytes": 1073741824}}
    (tmp_path / "values.yaml").write_text(f"{ONE}config: {json.dumps(whole)}\n")
    text = pick(render(tmp_path / "values.yaml"), "ConfigMap")["data"]["hub.toml"]
    config = build_config(HubConfig, tomllib.loads(text), None, {})
    assert (config.hub.max_queued, config.hub.held_back, config.api.max_body_bytes) == (4097, 0.25, 1 << 30)
    assert "max_queued = 4097\n" in text

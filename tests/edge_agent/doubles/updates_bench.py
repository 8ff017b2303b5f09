"""Update repository in memory behind an honest or hostile mirror, and the store of a device that uses it."""

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edge_agent.update.installed import RepositoryNames
from edge_agent.update.worker import run_job
from edge_agent.update.worker_protocol import PollReport, UpdateJob
from models.signing.roles import Permit
from models.update.slots import pack_bundle
from tests.edge_agent.doubles.hub_double import POLICY
from tests.models.conftest import LABELS, echo_graph, make
from tests.models.doubles.mirror import Mirror
from tests.models.doubles.repository import Repository

FAMILY, RULES, REGION = "echo", "policy/test.toml", "local"
KEYS = f"keys/{REGION}.json"
NAMES = RepositoryNames(FAMILY, ("test",), (REGION,), "0.1.0")
DEFAULTS = {
    "version": 1, "mode": "answer_now", "audit": 0.0, "budget_s": 5.0, "level": "P2",
    "bytes_per_day": 10_000_000, "max_open": 1000, "novel": "flag",
}  # fmt: skip
CUSTOM = {"min_agent": "0.1.0", "target": {"runtime": "none", "opset": 0, "precision": "float32", "machine": "any"}}


def bundle_path(version: int) -> str:
    return f"models/{FAMILY}/{FAMILY}-{version}.skb"


def make_hub_keys(hpke: bytes = b"h" * 32, signing: bytes = b"s" * 32, region: str = REGION, **more: object) -> bytes:
    keys = {"hpke_key": base64.b64encode(hpke).decode(), "signing_key": base64.b64encode(signing).decode()}
    hub = {"name": "hub-1", "region": region, **keys, "not_after_ms": 1, "serial": 1}
    return json.dumps({"region": region, "version": 1, "hubs": [hub], **more}).encode()


class UpdateBench:
    """A repository, its mirror and a device's store. `root`: the trusted root that the device's invite named."""

    def __init__(self, folder: Path, mirror: Mirror, repo: Repository) -> None:
        self.folder, self.mirror, self.repo = folder, mirror, repo
        self.store = folder / "updates"
        self.root = repo.trusted_root

    def publish_bundle(
        self, version: int, edge: bytes | None = None, scale: float = 1.0, labels: int = LABELS, **custom: object
    ) -> None:
        """Publish a bundle; its answers differ from those of every other version.

        `scale`: of its golden set. `labels`: its classes, as many as its input has values.
        """
        edge = edge or echo_graph(scale, labels=labels)
        made = make(self.folder / f"made-{version}", edge, scale, labels, version=version)
        self.publish_target(bundle_path(version), pack_bundle(made), "models-echo", version, **{**CUSTOM, **custom})

    def revoke_bundle(self, version: int) -> None:
        info = self.repo.targets("models-echo").targets[bundle_path(version)]
        info.unrecognized_fields["custom"]["revoked"] = True
        self.repo.publish_all("models-echo")

    def publish_permit(self, permit: Permit) -> None:
        """List a permit as the top-level targets role, which is signed offline."""
        self.repo.add(permit.path, b"for people", "targets", **permit.custom_fields())
        self.repo.publish_all("targets")

    def publish_policy(self, version: int, text: str = POLICY, **changes: object) -> None:
        document = text.format(**{**DEFAULTS, **changes, "version": version})
        self.publish_target(RULES, document.encode(), "policy", version)

    def publish_keys(self, data: bytes, version: int) -> None:
        self.publish_target(KEYS, data, "keys", version)

    def publish_target(self, place: str, data: bytes, role: str, version: int, **custom: object) -> None:
        self.repo.add(place, data, role, version, **custom)
        self.repo.publish_all(role)

    def make_job(self, **changes: object) -> UpdateJob:
        facts: dict[str, object] = {
            "folder": str(self.store), "url": self.mirror.url.rstrip("/"), "root": self.root, "least_ms": 0,
            "hub_url": "", "authorities": (), "documents": NAMES.documents, "family": FAMILY, "agent": NAMES.agent,
        }  # fmt: skip
        return UpdateJob(**{**facts, **changes})  # type: ignore[arg-type]

    def run_worker(self, **changes: object) -> PollReport:
        """Run one update worker's job in this process."""
        return run_job(self.make_job(**changes))


@contextmanager
def open_bench(folder: Path) -> Iterator[UpdateBench]:
    """A bench with policy 1 and hub keys 1 published, and no bundle yet."""
    repo = Repository()
    for role, paths in (("models-echo", "models/echo/*"), ("policy", "policy/*"), ("keys", "keys/*")):
        repo.delegate(role, [paths], terminating=True)
    repo.publish_all("models-echo", "policy", "keys", "targets")
    with Mirror(repo.files) as mirror:
        made = UpdateBench(folder, mirror, repo)
        made.publish_policy(1)
        made.publish_keys(make_hub_keys(), 1)
        yield made

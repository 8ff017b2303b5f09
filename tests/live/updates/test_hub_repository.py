"""A running hub and its update repository: served, kept alive, and named by invite and enrolment."""

import base64
import json
import urllib.request
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

import msgspec
import pytest

from cloud_hub.cli.publish import open_repository
from cloud_hub.repository.publish import create_demo_repository, publish_policy
from models.update.client import RepositorySource, ResumingFetcher, UpdateClient
from models.update.partial_download import PartialDownload
from tests.cloud_hub.doubles.fleet import CARD, POLICY, policy
from tests.cloud_hub.doubles.joiner import Joiner
from tests.live.hub.test_process import HubProcess

pytestmark = pytest.mark.live


def now():
    return datetime.now(UTC)


def invited(hub):
    packed = hub.invite("demo--cam-1").removeprefix("skerry1:")
    return msgspec.msgpack.decode(base64.urlsafe_b64decode(packed + "=" * (-len(packed) % 4)))


def enrolled(hub, token):
    body = json.dumps(Joiner().request(token)).encode()
    asked = urllib.request.Request(f"{hub.address().url}/v1/enrol", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(asked, timeout=10) as reply:
        return json.loads(json.loads(reply.read())["body"])


class Reader:
    """A device that knows nothing but what enrolment told it."""

    def __init__(self, folder: Path, url: str, root: bytes) -> None:
        folder.mkdir()
        self.folder = folder
        self.source = RepositorySource(f"{url}/metadata/", f"{url}/targets/", root)

    def reads(self, path: str) -> tuple[int, bytes]:
        fetcher = ResumingFetcher()
        session = UpdateClient(self.folder, self.source, fetcher).refresh()
        found = session.approved_target(path)
        assert found, path
        with PartialDownload(self.folder / f"{found.info.hashes['sha256']}.part") as part:
            session.download(found, part)
            part.file.seek(0)
            data = part.file.read()
        fetcher.close()
        return int(found.info.custom["version"]), data


def test_a_hub_begins_its_repository_while_it_runs_and_keeps_it(tmp_path):
    hub = HubProcess(tmp_path)
    try:
        hub.until(hub.ready)
        assert invited(hub)["root_sha256"] == ""
        repository = open_repository(tmp_path / "hub.toml")
        create_demo_repository(repository, CARD, [], [POLICY], now())  # with keys of nobody's hub
        invite = invited(hub)
        body = enrolled(hub, invite["token"])
        root = base64.b64decode(body["tuf_root"])
        assert sha256(root).hexdigest() == invite["root_sha256"]
        assert body["tuf_url"] == f"{hub.address().url}/tuf"
        device = Reader(tmp_path / "device", body["tuf_url"], root)
        assert device.reads("policy/demo.toml") == (1, POLICY)
        publish_policy(repository, policy(2), now())
        assert device.reads("policy/demo.toml") == (2, policy(2))
        hub.end()
        hub.process = hub.start()
        hub.until(hub.ready)
        device.source = msgspec.structs.replace(
            device.source,
            metadata_url=f"{hub.address().url}/tuf/metadata/",
            targets_url=f"{hub.address().url}/tuf/targets/",
        )
        hub.until(lambda: '"event":"published"' in hub.said())
        version, document = device.reads("keys/local.json")
        (keys,) = json.loads(document)["hubs"]
        assert version == 2
        assert keys["hpke_key"] == body["hubs"][0]["hpke_key"]
        assert keys["signing_key"] == body["hubs"][0]["signing_key"]
        assert hub.end() == 0
    finally:
        hub.close()

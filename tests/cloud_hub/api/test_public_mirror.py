"""The update repository over HTTP: public, read-only, resumable, and no path out of its folders."""

import asyncio
from hashlib import sha256

import aiohttp
import pytest
from aiohttp import web

from cloud_hub.api.public import DownloadLimits, TufRoutes
from cloud_hub.repository.publish import publish_bundle
from models.update.client import RepositorySource, ResumingFetcher, UpdateClient
from models.update.partial_download import PartialDownload
from tests.cloud_hub.doubles.fleet import NOW
from tests.cloud_hub.doubles.versions import make_joint
from wire.http.access import ServerAccess
from wire.http.guards import security_middlewares


@pytest.fixture
def hub(begun_hub):
    return begun_hub


class Site:
    def __init__(self, folder, limits=None):
        self.mirror = TufRoutes(folder, limits)

    async def __aenter__(self):
        app = web.Application(middlewares=security_middlewares(ServerAccess(), None, frozenset()))
        app.add_routes([route.aiohttp_route for route in self.mirror.routes()])
        self.runner = web.AppRunner(app, access_log=None)
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self.runner.addresses[0][1]}/tuf/"
        self.client = aiohttp.ClientSession(auto_decompress=False)
        return self

    async def __aexit__(self, *_):
        await self.client.close()
        await self.runner.cleanup()

    async def get(self, path, **headers):
        async with self.client.get(self.url + path, headers=headers) as response:
            return response.status, await response.read(), response.headers


@pytest.fixture
def target(tmp_path, hub):
    published = publish_bundle(hub.repository, make_joint(tmp_path / "echo-1").path, NOW)
    return f"targets/models/echo/{published.sha256}.echo-1.skb"


@pytest.fixture
def site(hub):
    return Site(hub.folder / "repository")


async def test_metadata_is_served_as_it_lies_there(hub, site):
    async with site:
        for name in ("timestamp.json", "1.root.json", "1.models-echo.json"):
            status, body, headers = await site.get(f"metadata/{name}")
            assert (status, body) == (200, hub.repository.shelf.read_metadata(name))
            assert headers["Content-Type"] == "application/json"
            assert ("no-cache" in headers["Cache-Control"]) == (name == "timestamp.json")
        assert (await site.get("metadata/2.root.json"))[0] == 404


async def test_a_target_goes_on_where_it_stopped(site, target):
    async with site:
        status, whole, headers = await site.get(target)
        assert status == 200
        assert target.split("/")[-1].startswith(sha256(whole).hexdigest())
        tag = headers["ETag"]
        assert tag == f'"{sha256(whole).hexdigest()}"'  # strong, and the same wherever the file lies
        half = len(whole) // 2
        status, rest, headers = await site.get(target, Range=f"bytes={half}-", **{"If-Range": tag})
        assert (status, rest) == (206, whole[half:])
        assert headers["Content-Range"] == f"bytes {half}-{len(whole) - 1}/{len(whole)}"
        assert (await site.get(target, **{"If-None-Match": tag}))[0] == 304
        assert (await site.get(target, Range=f"bytes={len(whole)}-"))[0] == 416
        assert (await site.get(target, Range="bytes=-10"))[1] == whole[-10:]
        assert (await site.get(target, Range="bytes=0-1,5-9"))[:2] == (200, whole)
        status, body, _ = await site.get(target, Range=f"bytes={half}-", **{"If-Range": '"another"'})
        assert (status, body) == (200, whole)


@pytest.mark.parametrize(
    "path",
    [
        "metadata/../lock",
        "metadata/..%2F..%2Fonline%2Ftimestamp-0001.key",
        "metadata/.json",
        "metadata/lock",
        "metadata/0.root.json",
        "metadata/%2e%2e/%2e%2e/online/timestamp-0001.key",
        "targets/../../online/timestamp-0001.key",
        "targets/..%2F..%2Fonline%2Ftimestamp-0001.key",
        "targets/policy/demo.toml",
        "targets/policy/%00",
        "targets//etc/passwd",
        f"targets/policy/..%2F..%2F{'a' * 64}.demo.toml",
        f"targets/Policy/{'a' * 64}.demo.toml",
        f"targets/{'a/' * 400}{'a' * 64}.x",
        "",
    ],
)
async def test_nothing_but_names_of_the_repository_is_looked_up(site, path):
    async with site:
        status, body, _ = await site.get(path)
        assert status == 404
        assert b"PRIVATE" not in body


async def test_a_link_laid_into_the_targets_is_not_a_way_out(hub, site):
    """Its name would have to be a hash, and a device would refuse its bytes; still nothing of ours makes one."""
    assert not any(path.is_symlink() for path in (hub.folder / "repository" / "targets").rglob("*"))


async def test_only_so_many_downloads_at_once(hub, target):
    async with Site(hub.folder / "repository", DownloadLimits(downloads=0)) as site:
        status, _, headers = await site.get(target)
        assert (status, headers["Retry-After"]) == (503, "30")
        assert (await site.get("metadata/timestamp.json"))[0] == 200


async def until_served(site: Site, path: str) -> None:
    """Ask until a download has the place of one that was hung up, which the server may notice late."""
    async with asyncio.timeout(60):
        while (found := (await site.get(path))[0]) == 503:
            await asyncio.sleep(0.01)
    assert found == 200


async def test_a_slot_is_free_again_after_a_download_that_was_hung_up(hub, target):
    async with Site(hub.folder / "repository", DownloadLimits(downloads=1)) as site:
        for _ in range(3):
            async with site.client.get(site.url + target) as response:
                response.close()
            await until_served(site, target)


@pytest.mark.further
async def test_who_reads_nothing_is_hung_up_on_and_the_slot_is_free(hub, target):
    """A hub that waits for slow readers serves nobody else."""
    big = hub.repository.shelf.place_target("models/echo/big-1.skb", bytes(64 << 20))
    limits = DownloadLimits(downloads=1, grace_s=0.3, bytes_per_s=1e12)
    async with Site(hub.folder / "repository", limits) as site:
        reader, writer = await asyncio.open_connection("127.0.0.1", site.runner.addresses[0][1], limit=1024)
        path = f"/tuf/targets/{big.get_prefixed_paths()[0]}"
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        await reader.readline()
        assert (await site.get(target))[0] == 503
        await until_served(site, target)
        writer.close()


async def test_our_own_client_fetches_over_it(tmp_path, hub, target):
    """The device's fetcher, floors and store side against this server."""
    async with Site(hub.folder / "repository") as site:
        source = RepositorySource(site.url + "metadata/", site.url + "targets/", hub.repository.read_root())
        assert await asyncio.to_thread(fetched, tmp_path, source) == target.split("/")[-1].split(".")[0]


def fetched(folder, source):
    fetcher = ResumingFetcher()
    session = UpdateClient(folder, source, fetcher).refresh()
    found = session.approved_target("models/echo/echo-1.skb")
    assert found
    with PartialDownload(folder / "part") as part:
        session.download(found, part)
        part.file.seek(0)
        digest = sha256(part.file.read()).hexdigest()
    fetcher.close()
    return digest


async def test_the_door_is_the_same_as_everywhere(site):
    async with site:
        assert (await site.get("metadata/timestamp.json", Host="evil.example"))[0] == 403
        assert (await site.get("metadata/timestamp.json", Origin="http://evil.example"))[0] == 403


async def test_it_changes_nothing(site, target):
    async with site:
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            async with site.client.request(method, site.url + target) as response:
                assert response.status == 405
        async with site.client.head(site.url + target) as response:
            assert (response.status, await response.read()) == (200, b"")

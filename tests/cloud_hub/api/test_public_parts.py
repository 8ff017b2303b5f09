"""Files of hub parts over HTTP: resumable for other hubs, and not there at all for devices and everybody else."""

from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path

import pytest

from cloud_hub.registry.access import Scope
from cloud_hub.repository.files import RepositoryFiles
from tests.cloud_hub.doubles.api_site import Site

DATA = bytes(range(250)) * 2400  # more than two pieces
DIGEST = sha256(DATA).hexdigest()
HUB_PATH = "models/digits/digits-7.hub.json"


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    files = RepositoryFiles(tmp_path / "repository")
    (tmp_path / "shard").write_bytes(DATA)
    files.parts.place_file(tmp_path / "shard", DIGEST, len(DATA))
    opened = await Site(tmp_path, repository=files.folder).open()
    yield opened
    await opened.close()


async def read(site: Site, path: str, headers: dict[str, str]) -> tuple[int, bytes]:
    async with site.client.get(site.url + path, headers=headers) as response:
        return response.status, await response.read()


async def test_a_hub_with_the_operators_key_reads_a_part_and_goes_on_where_it_was_cut(site):
    for key in (site.admin, site.key("", Scope.OPERATE)):
        assert await read(site, f"/tuf/parts/{DIGEST}", key) == (200, DATA)
        rest = {"Range": "bytes=500000-", "If-Range": f'"{DIGEST}"'}
        assert await read(site, f"/tuf/parts/{DIGEST}", {**key, **rest}) == (206, DATA[500_000:])


async def test_no_cache_on_the_way_keeps_what_only_a_key_opens(site):
    async with site.client.get(f"{site.url}/tuf/parts/{DIGEST}", headers=site.admin) as response:
        assert response.headers["Cache-Control"] == "private, no-store"


async def test_for_everybody_else_a_part_is_not_there_and_the_reach_for_it_is_audited(site):
    strangers: tuple[dict[str, str], ...] = (
        {},
        {"Authorization": "Bearer x"},
        site.key("", Scope.INFER, Scope.READ),
        site.key("clinic", Scope.INFER, Scope.READ, Scope.OPERATE),
    )
    for headers in strangers:
        there = await read(site, f"/tuf/parts/{DIGEST}", headers)
        nowhere = await read(site, f"/tuf/parts/{'0' * 64}", headers)
        assert there == nowhere
        assert there[0] == 404
    assert [entry.status for entry in site.audit.last_entries(8)] == [401, 401, 401, 401, 403, 403, 403, 403]


async def test_the_description_of_a_hub_part_is_no_file_that_a_device_can_fetch(site, tmp_path):
    data = b'{"files": {}}'
    info = RepositoryFiles(tmp_path / "repository").place_target(HUB_PATH, data)
    assert (await read(site, f"/tuf/targets/{info.get_prefixed_paths()[0]}", site.admin))[0] == 404
    assert await read(site, f"/tuf/parts/{info.hashes['sha256']}", site.admin) == (200, data)


@pytest.mark.parametrize("name", ["", "..", f".{DIGEST}.ab", DIGEST.upper(), f"{DIGEST}.x", "%2e%2e%2fmetadata", "."])
async def test_nothing_but_a_digest_is_looked_up(site, name):
    (site.token_file.parent / "repository" / "parts" / f".{DIGEST}.ab").write_bytes(b"not whole yet")
    assert (await read(site, f"/tuf/parts/{name}", site.admin))[0] == 404

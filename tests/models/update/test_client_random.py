"""Random metadata, also such as a hub's own stolen keys have signed, against the whole update client.

Rule: whatever a repository serves, a refresh and every question to it end in a value or in `RefusedError`.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tuf.api.exceptions import DownloadHTTPError, RepositoryError
from tuf.api.metadata import Metadata, Root

from models.signing.request import RequestError, decode_metadata, load_request, load_state
from models.update import tuf_view
from models.update.client import RefusedError, RepositorySource, UpdateClient
from models.update.downloader import ResumingFetcher
from tests.models.doubles.repository import NOW, Repository, signer
from tests.random_inputs import COUNTS, FEW, MANY, damage, random_inputs, try_parser

WORDS = [
    b'"signed"', b'"signatures"', b'"_type"', b'"root"', b'"targets"', b'"version"', b'"expires"', b'"keys"',
    b'"roles"',
    b'"keyids"', b'"threshold"', b'"meta"', b'"custom"', b'"hashes"', b'"length"', b'"sha256"', b'"delegations"', b"{}",
    b'"9999-12-31T23:59:59Z"', b'"0001-01-01T00:00:00Z"', b'"spec_version"', b'"path_hash_prefixes"', b"[]",
    b'"succinct_roles"', b'"../../etc"', b'"models/echo/1.skb"', b"true", b'""', b'"signed_ms"',
]  # fmt: skip
# A refresh of its own for each, 30 ms: a twentieth of the inputs that a parser alone gets.
REFRESHES = (FEW // 10, pytest.param(MANY // 20, marks=[pytest.mark.heavy, pytest.mark.timeout(7200)]))


class MemoryFetcher(ResumingFetcher):
    """The downloader over files in memory."""

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__()
        self.files = files

    def download_bytes(self, url: str, max_length: int) -> bytes:
        found = self.files.get(url.removeprefix("memory:"))
        if found is None:
            raise DownloadHTTPError("not there", 404)
        return found[: max_length + 1]


def make_repository() -> Repository:
    repo = Repository()
    repo.delegate("models", ["models/*/*"])
    repo.add("models/echo/1.skb", b"bundle", "models", 1)
    repo.add("permits/echo/1.json", b"{}", version=1)
    repo.publish_all("models", "targets")
    return repo


def roles_served(repo: Repository) -> dict[str, bytes]:
    """The newest file of each role, by role."""
    return {role: repo.files[f"metadata/{role}.json"] for role in repo.md}


@pytest.mark.parametrize("count", COUNTS)
def test_random_root_metadata_is_a_root_or_a_repository_error(count):
    sound = [*roles_served(make_repository()).values()]
    assert try_parser(tuf_view.parse_root, RepositoryError, random_inputs(count, sound, WORDS))


@pytest.mark.parametrize("count", COUNTS)
def test_random_signing_requests_and_states_are_read_or_refused(count):
    repo = make_repository()
    values: dict[str, Any] = {role: json.loads(data) for role, data in roles_served(repo).items()}
    online = {role: {"keyid": key.keyid, **key.to_dict()} for role, key in (("snapshot", signer(3).public_key),)}
    state = {"online": online, "roots": [values["root"]], "base": {"targets": values["targets"]}}
    sound = [
        json.dumps({"format": "skerry-hub/1", **state}).encode(),
        json.dumps({"format": "skerry-request/1", **state, "changes": {"targets": values["targets"]}}).encode(),
    ]

    def read(data: bytes) -> None:
        for parse in (load_state, load_request, lambda each: decode_metadata(each, Root)):
            try:
                parse(data)
            except RequestError:
                continue

    try_parser(read, RequestError, random_inputs(count, sound, WORDS))


def sign_again(repo: Repository, role: str, data: bytes) -> bytes:
    """The metadata signed by the role's own keys, as whoever stole them can; as it is where it cannot be read."""
    try:
        metadata: Metadata[Any] = Metadata.from_bytes(data)
        metadata.signatures.clear()
        for key in repo.keys[role]:
            metadata.sign(signer(key), append=True)
        return metadata.to_bytes()
    except Exception:  # noqa: BLE001 - what cannot be signed is served as it is
        return data


def hostile_files(count: int, repo: Repository) -> Iterator[dict[str, bytes]]:
    """The repository with one role damaged and signed again."""
    for seed in range(count):
        dice = Random(seed)
        role, data = dice.choice([*roles_served(repo).items()])
        changed = sign_again(repo, role, damage(dice, data, WORDS))
        version = repo.md[role].signed.version + (role == "root")
        yield {**repo.files, f"metadata/{role}.json": changed, f"metadata/{version}.{role}.json": changed}


@pytest.mark.parametrize("count", REFRESHES)
def test_random_metadata_signed_by_stolen_keys_ends_in_a_value_or_a_refusal(tmp_path: Path, count):
    repo = make_repository()
    repo.root.version += 1  # what a damaged root replaces
    source = RepositorySource("memory:metadata/", "memory:targets/", repo.trusted_root)
    for number, files in enumerate(hostile_files(count, repo)):
        folder = tmp_path / str(number % 8)  # some begin with what an earlier one has left
        folder.mkdir(exist_ok=True)
        client = UpdateClient(folder, source, MemoryFetcher(files), NOW.timestamp)
        try:
            session = client.refresh()
            offers = session.targets_below("models")
            for path in ("models/echo/1.skb", *(info.path for info in offers)):
                session.approved_target(path)
                session.floor_under(path)
            session.permits("echo")
            for info in offers:
                found = session.find_target(info.path)
                if found:
                    session.raise_floor(found)
        except RefusedError:
            continue
        except Exception as error:
            changed = {name: data for name, data in files.items() if repo.files.get(name) != data}
            raise AssertionError(f"repository {number}: {error!r}: {changed}") from error

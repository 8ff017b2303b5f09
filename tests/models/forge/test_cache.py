"""Stage cache of the forge: found by content, complete or not at all."""

import os

import pytest

from models.forge.cache import StageCache, digest_parts

FILES = {"a.json": b"[1]", "b.bin": bytes(1000)}


def test_what_was_kept_is_found_under_its_key_alone(tmp_path):
    cache = StageCache(tmp_path)
    cache.store_stage("edge", digest_parts("x"), FILES)
    assert StageCache(tmp_path).find_stage("edge", digest_parts("x")) == FILES
    assert cache.find_stage("edge", digest_parts("y")) is None
    assert cache.find_stage("tail", digest_parts("x")) is None


@pytest.mark.parametrize("damage", ["cut short", "missing", "index gone", "index odd"])
def test_a_damaged_result_counts_as_absent(tmp_path, damage):
    cache = StageCache(tmp_path)
    cache.store_stage("edge", digest_parts("x"), FILES)
    (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
    match damage:
        case "cut short":
            (folder / "b.bin").write_bytes(bytes(999))
        case "missing":
            (folder / "a.json").unlink()
        case "index gone":
            (folder / "index.json").unlink()
        case _:
            (folder / "index.json").write_text("[")
    assert cache.find_stage("edge", digest_parts("x")) is None
    cache.store_stage("edge", digest_parts("x"), FILES)
    assert cache.find_stage("edge", digest_parts("x")) == FILES


def test_the_oldest_results_make_room_for_new_ones(tmp_path):
    cache = StageCache(tmp_path, limit_bytes=2500)
    for number in range(4):
        cache.store_stage("edge", digest_parts(number), {"data": bytes(1000)})
        for folder in tmp_path.iterdir():
            facts = folder.stat()
            os.utime(folder, (facts.st_atime - 10, facts.st_mtime - 10))
    assert [cache.find_stage("edge", digest_parts(number)) is not None for number in range(4)] == [
        False,
        False,
        True,
        True,
    ]


def test_without_a_folder_nothing_outlives_the_run():
    with StageCache(None) as cache:
        cache.store_stage("edge", digest_parts("x"), FILES)
        assert cache.find_stage("edge", digest_parts("x")) == FILES
    assert not cache.root.exists()


def test_digests_tell_values_apart_that_read_alike():
    assert digest_parts("ab", "c") != digest_parts("a", "bc")
    assert digest_parts(b"1") != digest_parts(1)
    assert digest_parts({"a": 1, "b": 2}) == digest_parts({"b": 2, "a": 1})

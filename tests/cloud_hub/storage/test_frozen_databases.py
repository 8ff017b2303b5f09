"""Databases of hubs, frozen in `tests/vectors/databases`: this release opens each part and finds what was in it."""

from pathlib import Path

import pytest

from cloud_hub.core.commands import LookUpQuestions, QuestionKey
from cloud_hub.database.connection import open_part
from cloud_hub.database.parts import ACCESS, LEDGER, PARTS, QUESTIONS, REGISTRY, ROLLOUTS, VERSIONS, DatabasePart
from cloud_hub.registry.access import ApiKeys
from cloud_hub.registry.orders_store import OrdersStore
from cloud_hub.registry.registry import Registry
from cloud_hub.rollout.store import RolloutStore
from cloud_hub.storage.jobs import StoreJob
from cloud_hub.storage.ledger_log import LedgerLog
from cloud_hub.storage.store import Store
from cloud_hub.storage.versions import ModelUsageStore
from tests import frozen_databases as frozen
from tests.second_implementation import frames, vectors
from wire.protocol.messages import RefusalReason

OF_PARTS = [
    pytest.param(part, path.name, id=path.name)
    for part in PARTS
    for path in sorted(frozen.FOLDER.glob(f"{part.name}-*.sql"))
]


def files(part: DatabasePart) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("file", sorted(path.name for path in frozen.FOLDER.glob(f"{part.name}-*.sql")))


def load(part: DatabasePart, file: str, folder: Path) -> Path:
    path = folder / part.file
    frozen.load_database(file, path)
    return path


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_the_schema_of_this_release_is_frozen(part: DatabasePart) -> None:
    file = frozen.FOLDER / frozen.newest_files()[part.name]
    assert file.exists(), "a schema has a new number: python -m tests.frozen_databases, and see tests/vectors/README.md"


@pytest.mark.parametrize(("part", "file"), OF_PARTS)
def test_every_row_of_a_frozen_part_is_there_after_this_release_opened_it(
    part: DatabasePart, file: str, tmp_path: Path
) -> None:
    path = load(part, file, tmp_path)
    before = frozen.read_rows(path)
    assert all(before.values()), "each of its tables has a row"
    open_part(path, part).dispose()
    after = frozen.read_rows(path)
    del before["meta"]  # the number
    assert frozen.find_lost_rows(before, after) == []
    assert {table.name for table in part.tables} <= after.keys()


@files(QUESTIONS)
def test_questions_of_a_frozen_hub_are_open_answered_refused_or_erased(file: str, tmp_path: Path) -> None:
    load(QUESTIONS, file, tmp_path)
    sealed = {vector["name"]: vector for vector in vectors.load("frames.json")["sealed"]}
    store = Store.open(f"sqlite:///{tmp_path / QUESTIONS.file}")
    try:
        (waiting,) = store.read_unanswered()
        assert (waiting.key.seq, waiting.sealed) == (1, sealed["question"]["frame"])
        keys = tuple(QuestionKey(vectors.DEVICE, frozen.EPOCH, seq) for seq in (1, 2, 3, 4))
        found = store.apply_jobs([StoreJob(finds=[LookUpQuestions(0, keys)])])[0].rows
        rows = {key.seq: row for key, row in found.items()}
        assert rows[2].verdict == sealed["verdict"]["frame"]
        assert rows[3].refusal is RefusalReason.POLICY
        assert rows[4].verdict is None
        marks = {stone.mark for stone in store.read_tombstones()}
        assert marks == {frames.subject_mark(vectors.DEVICE, frozen.PERSON)}
    finally:
        store.close()


@files(REGISTRY)
def test_devices_and_orders_of_a_frozen_hub_hold(file: str, tmp_path: Path) -> None:
    path = load(REGISTRY, file, tmp_path)
    registry = Registry.open(path)
    device = registry.device(vectors.DEVICE)
    assert device is not None
    assert device.active
    assert device.signing_key.public_bytes_raw() == frames.signing_public(vectors.DEVICE_SIGNING)
    assert device.hpke_key.public_bytes_raw() == frames.hpke_public(vectors.DEVICE_HPKE)
    assert device.device_class == "camera"
    assert registry.count_open_invites(frozen.ASKED_MS + 1) == 1
    registry.close()
    orders = OrdersStore.open(path)
    assert [(notice.scope, notice.counter) for notice in orders.read().notices] == [("demo", 7)]
    orders.close()


@files(LEDGER)
def test_the_log_of_a_frozen_hub_has_its_root_and_proves_what_it_proved(file: str, tmp_path: Path) -> None:
    log = LedgerLog.open(load(LEDGER, file, tmp_path), frozen.ASKED_MS)
    trees = vectors.load("ledger.json")["trees"]
    assert log.tree() == (7, trees[7]["root"])
    assert [list(log.prove_inclusion(index, 7)) for index in range(7)] == trees[7]["inclusion"]
    assert log.spend_mirror(vectors.DEVICE) == (("bytes", 20_000, 7),)
    log.close()


@files(ROLLOUTS)
def test_rollouts_of_a_frozen_hub_go_on(file: str, tmp_path: Path) -> None:
    store = RolloutStore.open(load(ROLLOUTS, file, tmp_path))
    assert store.list_ids() == ["r1"]
    record = store.read_record("r1")
    assert record is not None
    assert record.plan.made_ms == frozen.ASKED_MS
    assert len(store.read_history("r1")) == 1
    assert record.counters[vectors.DEVICE] == 12
    store.close()


@files(ACCESS)
def test_a_key_of_a_frozen_hub_still_opens(file: str, tmp_path: Path) -> None:
    keys = ApiKeys.open(load(ACCESS, file, tmp_path))
    secret = (frozen.FOLDER / file).with_suffix(frozen.SECRET).read_text(encoding="utf-8")
    caller = keys.find_caller(secret, frozen.ASKED_MS)
    assert caller is not None
    assert caller.tenant == "demo"
    assert [key.name for key in keys.list_keys()] == ["panel"]
    keys.close()


@files(VERSIONS)
def test_models_in_use_at_a_frozen_hub_are_known(file: str, tmp_path: Path) -> None:
    uses = ModelUsageStore.open(load(VERSIONS, file, tmp_path))
    assert uses.read_uses()[vectors.DEVICE].versions() == ("digits@7",)
    assert "digits@5" in uses.retired_models()
    uses.close()

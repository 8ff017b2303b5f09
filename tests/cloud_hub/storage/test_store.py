"""Store of questions and verdicts: durability, uniqueness, forward migration, nothing in the clear."""

import shutil
import stat

import numpy as np
import pytest

from cloud_hub.core.commands import LookUpQuestions, QuestionEnding, QuestionKey, StoredQuestion
from cloud_hub.storage.jobs import StoreError, StoreJob
from cloud_hub.storage.store import Store
from tests.cloud_hub.doubles.bench import Bench
from tests.cloud_hub.doubles.devices import CODEC, SimDevice
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.files import list_set_aside
from wire.protocol.messages import RefusalReason


def key(seq: int) -> QuestionKey:
    return QuestionKey("demo--d1", 7, seq)


def question(seq: int, kept_ms: int = 1000) -> StoredQuestion:
    return StoredQuestion(key(seq), "echo@1", "ab", 900, kept_ms, b"d" * 32, b"f" * 32, b"sealed")


def ending(seq: int) -> QuestionEnding:
    return QuestionEnding(key(seq), 2000, verdict=b"verdict")


@pytest.fixture
def url(tmp_path) -> str:
    return f"sqlite:///{tmp_path}/hub.db"


@pytest.fixture
def store(urls):
    store = Store.open(urls.questions)
    yield store
    store.close()


@pytest.fixture
def file_store(url):
    store = Store.open(url)
    yield store
    store.close()


def find(store: Store, *seqs: int):
    (done,) = store.apply_jobs(
        [StoreJob(finds=[LookUpQuestions(1, tuple(key(seq) for seq in seqs), (("demo--d1", 7),))])]
    )
    return done


def test_a_question_is_owed_until_its_ending_and_then_its_sealed_bytes_are_gone(store):
    store.apply_jobs([StoreJob(keeps=[question(1), question(2)])])
    assert [owed.key.seq for owed in store.read_unanswered()] == [1, 2]
    assert store.read_unanswered()[0] == question(1)
    store.apply_jobs([StoreJob(endings=[ending(1), QuestionEnding(key(2), 2000, refusal=RefusalReason.ENGINE)])])
    assert store.read_unanswered() == []
    rows = find(store, 1, 2, 3).rows
    assert rows[key(1)].verdict == b"verdict"
    assert rows[key(2)].refusal is RefusalReason.ENGINE
    assert key(3) not in rows


def test_question_and_ending_in_one_group_leave_no_sealed_bytes(store):
    store.apply_jobs([StoreJob(keeps=[question(1)]), StoreJob(endings=[ending(1)])])
    assert store.read_unanswered() == []
    assert find(store, 1).rows[key(1)].verdict == b"verdict"


def test_a_second_row_under_the_same_key_is_refused_and_nothing_of_its_job_happens(store):
    store.apply_jobs([StoreJob(keeps=[question(1)])])
    with pytest.raises(StoreError):
        store.apply_jobs([StoreJob(keeps=[question(2), question(1)])])
    assert set(find(store, 1, 2).rows) == {key(1)}


def test_a_question_ends_once(store):
    store.apply_jobs([StoreJob(keeps=[question(1)])])
    store.apply_jobs([StoreJob(endings=[ending(1)])])
    (done,) = store.apply_jobs([StoreJob(endings=[QuestionEnding(key(1), 3000, verdict=b"second"), ending(9)])])
    assert done.vanished == {key(1), key(9)}
    assert find(store, 1).rows[key(1)].verdict == b"verdict"


def test_forget_then_keep_in_later_jobs_of_one_group_begins_anew(store):
    store.apply_jobs([StoreJob(keeps=[question(1)])])
    store.apply_jobs([StoreJob(endings=[ending(1)]), StoreJob(forgets=[key(1)], keeps=[question(1, 5000)])])
    assert [owed.kept_ms for owed in store.read_unanswered()] == [5000]


def test_the_highest_seq_of_a_stream_is_found(store):
    assert find(store).highest == {}
    store.apply_jobs([StoreJob(keeps=[question(seq) for seq in (3, 900, 7)])])
    assert find(store, 900).highest == {("demo--d1", 7): 900}


def test_old_rows_are_pruned_in_chunks(store):
    store.apply_jobs([StoreJob(keeps=[question(seq, kept_ms=seq) for seq in range(1, 6002)])])
    (done,) = store.apply_jobs([StoreJob(prune_before_ms=6001)])
    assert done.more
    (done,) = store.apply_jobs([StoreJob(prune_before_ms=6001)])
    assert not done.more
    assert [owed.key.seq for owed in store.read_unanswered()] == [6001]
    assert store.newest_ms() == 6001


def test_committed_rows_are_there_after_a_power_cut(file_store, tmp_path):
    """The files as another process finds them while we are still open: no clean close ever happens."""
    file_store.apply_jobs([StoreJob(keeps=[question(1)])])
    for name in ("hub.db", "hub.db-wal"):
        shutil.copy(tmp_path / name, tmp_path / f"cut-{name}")
    (tmp_path / "cut-hub.db-wal").rename(tmp_path / "cut.db-wal")
    (tmp_path / "cut-hub.db").rename(tmp_path / "cut.db")
    after = Store.open(f"sqlite:///{tmp_path}/cut.db")
    assert [owed.key.seq for owed in after.read_unanswered()] == [1]
    after.close()


def test_full_synchronous_write_ahead_log_and_private_file(file_store, tmp_path):
    with file_store._engine.connect() as connection:
        assert connection.exec_driver_sql("pragma synchronous").scalar() == 2
        assert connection.exec_driver_sql("pragma journal_mode").scalar() == "wal"
    assert stat.S_IMODE((tmp_path / "hub.db").stat().st_mode) == 0o600


def test_a_damaged_database_is_set_aside_whole_and_a_new_one_begun(url, tmp_path):
    """It stopped the hub, which was started again every five seconds, for ever; devices hold what they are owed."""
    before = Store.open(url)
    before.apply_jobs([StoreJob(keeps=[question(1)])])
    before.close()
    whole = (tmp_path / "hub.db").read_bytes()
    hurt = whole[:1000] + b"\x5a" * 9000 + whole[10_000:]
    (tmp_path / "hub.db").write_bytes(hurt)
    (tmp_path / "hub.db-wal").write_bytes(b"its log")
    after = Store.open(url)
    assert (after.read_unanswered(), after.newest_ms()) == ([], 0)
    after.apply_jobs([StoreJob(keeps=[question(1)])])
    after.close()
    assert list_set_aside(tmp_path / "hub.db") == [after.damaged]
    assert (tmp_path / after.damaged).read_bytes()[1000:4000] == hurt[1000:4000]
    again = Store.open(url)
    assert (again.damaged, len(again.read_unanswered())) == ("", 1)
    again.close()


@pytest.mark.parametrize("rubbish", [b"not a database at all" * 100, b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_file_that_is_no_database_is_set_aside(url, tmp_path, rubbish):
    (tmp_path / "hub.db").write_bytes(rubbish)
    store = Store.open(url)
    store.close()
    assert (tmp_path / store.damaged).read_bytes() == rubbish
    assert stat.S_IMODE((tmp_path / "hub.db").stat().st_mode) == 0o600


def test_a_folder_that_is_not_there_is_a_disk_error(tmp_path):
    with pytest.raises(ExitError) as stop:
        Store.open(f"sqlite:///{tmp_path}/missing/hub.db")
    assert stop.value.code is ExitCode.DISK


def test_a_full_disk_fails_the_job_as_a_whole(file_store):
    store = file_store
    with store._engine.connect() as connection:
        pages = connection.exec_driver_sql("pragma page_count").scalar()
        connection.exec_driver_sql(f"pragma max_page_count = {pages}")
    with pytest.raises(StoreError, match="SQLITE_FULL"):
        store.apply_jobs([StoreJob(keeps=[question(seq) for seq in range(1, 2000)])])
    assert find(store, 1).rows == {}
    with store._engine.connect() as connection:
        connection.exec_driver_sql("pragma max_page_count = 1000000")
    store.apply_jobs([StoreJob(keeps=[question(1)])])
    assert len(store.read_unanswered()) == 1


def test_nothing_of_a_sample_lies_on_disk_in_the_clear(tmp_path):
    device = SimDevice()
    bench = Bench(device)
    bench.store = Store.open(f"sqlite:///{tmp_path}/hub.db")
    canary = np.array([7, 10, 7, 10, 11, 14, 14, 15, 7, 1], np.uint8)
    tensor = CODEC.encode("features", canary)
    bench.ask(device, 1, fields={"features": tensor}, trace="canary-trace")
    bench.commit()
    bench.commit()
    seen = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    bench.settle()
    seen += b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert list(bench.verdicts(device)) == [1]
    for secret in (tensor.data, canary.tobytes(), b"canary-trace", f"{1:032x}".encode()):
        assert secret not in seen
    assert b"demo--d1" in seen  # the search has power
    bench.store.close()

"""A watched folder and JSON lines: each file and each line ends with an answer or a one-line reason."""

import asyncio
import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_agent.sources.feed import SampleFeed
from edge_agent.sources.files.folder import FolderWatcher
from edge_agent.sources.files.image_files import limit_file_bytes
from edge_agent.sources.json_lines import MAX_LINE_BYTES, JsonLines, read_lines
from tests.edge_agent.doubles.api_double import MemoryAgent
from tests.edge_agent.sources.test_image_files import HOSTILE_NPY, npy
from wire.process.logging import JsonLog


def watching(folder: Path) -> tuple[MemoryAgent, FolderWatcher]:
    agent = MemoryAgent()
    return agent, FolderWatcher(folder, SampleFeed(agent, "private"), 0.01, JsonLog(io.StringIO()))


def result(folder: Path, where: str, name: str) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((folder / where / f"{name}.json").read_text())
    return read


async def test_a_file_is_answered_once_and_moved_beside_its_answer(tmp_path):
    agent, folder = watching(tmp_path)
    (tmp_path / "a.npy").write_bytes(npy(np.array([0.1, 0.9, 0], np.float32)))
    assert await folder.scan_once() == 0  # it may still be written to
    assert await folder.scan_once() == 1
    assert await folder.scan_once() == 0
    assert [s.data_class for s in agent.samples] == ["private"]
    assert (tmp_path / "done" / "a.npy").exists()
    assert not (tmp_path / "a.npy").exists()
    told = result(tmp_path, "done", "a.npy")
    assert (told["file"], told["label"], told["reason"], told["answer_id"]) == ("a.npy", 1, "confident", f"{1:032x}")


async def test_a_file_that_is_still_written_is_left_alone(tmp_path):
    agent, folder = watching(tmp_path)
    whole = npy(np.array([0.1, 0.9, 0], np.float32))
    for end in (10, 60, len(whole)):
        (tmp_path / "a.npy").write_bytes(whole[:end])
        assert await folder.scan_once() == 0
    (tmp_path / ".b.npy").write_bytes(whole)
    (tmp_path / "c.txt").write_bytes(whole)
    await folder.scan_once()
    await folder.scan_once()
    assert len(agent.samples) == 1
    assert {f.name for f in tmp_path.iterdir()} == {".b.npy", "c.txt", "done", "failed"}


async def test_the_agent_hears_of_a_refused_sample_and_can_ask_whether_the_model_before_takes_it(tmp_path):
    agent, folder = watching(tmp_path)
    (tmp_path / "two.npy").write_bytes(npy(np.array([0.1, 0.9], np.float32)))
    await folder.scan_once()
    await folder.scan_once()
    assert agent.refused == [True]
    (tmp_path / "range.npy").write_bytes(npy(np.array([0.1, 7.0], np.float32)))
    await folder.scan_once()
    await folder.scan_once()
    assert agent.refused == [True, False]
    await answers(b'{"x": [0.1, 0.9]}\n{"x": [0.1, 7]}\n{"x": [0.1, 0.9, 0.0]}\n', agent)
    assert sorted(agent.refused) == [False, False, True, True]


async def test_what_cannot_be_a_sample_goes_to_failed_with_a_reason(tmp_path):
    agent, folder = watching(tmp_path)
    secret = tmp_path.parent / f"{tmp_path.name}-secret.npy"
    secret.write_bytes(npy(np.zeros(3, np.float32)))
    (tmp_path / "link.npy").symlink_to(secret)
    os.mkfifo(tmp_path / "pipe.npy")
    (tmp_path / "folder.npy").mkdir()
    (tmp_path / "huge.npy").write_bytes(bytes(limit_file_bytes(agent.runner.manifest.input) + 1))
    (tmp_path / "range.npy").write_bytes(npy(np.full(3, 7, np.float32)))
    (tmp_path / "nan.npy").write_bytes(npy(np.full(3, np.nan, np.float32)))
    await folder.scan_once()
    await asyncio.wait_for(folder.scan_once(), 60)  # the pipe does not block it
    assert agent.samples == []
    failed = {f.name for f in (tmp_path / "failed").iterdir() if not f.name.endswith(".json")}
    assert failed == {"link.npy", "pipe.npy", "folder.npy", "huge.npy", "range.npy", "nan.npy"}
    assert "plain file" in result(tmp_path, "failed", "pipe.npy")["error"]
    assert "the model takes 0..1" in result(tmp_path, "failed", "range.npy")["error"]
    assert secret.exists()


async def test_no_file_whatever_it_holds_or_is_called_ends_the_agent(tmp_path):
    """A damaged `.npy` raised `tokenize.TokenError` through the watcher, and again at every start of the agent."""
    agent, folder = watching(tmp_path)
    hostile = {f"h{number}.npy": data for number, data in enumerate(HOSTILE_NPY)}
    hostile |= {os.fsdecode(b"\xff.npy"): b"", "n" * 251 + ".npy": b"", "[red]\n.png": b"", "empty.png": b""}
    for name, data in hostile.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "sound.npy").write_bytes(npy(np.array([0, 1, 0], np.float32)))
    await folder.scan_once()
    assert await folder.scan_once() == len(hostile) + 1
    assert [f.name for f in tmp_path.iterdir() if f.is_file()] == []
    assert result(tmp_path, "done", "sound.npy")["label"] == 1
    told = [json.loads(f.read_bytes()) for f in (tmp_path / "failed").glob("*.json")]
    assert {t["file"] for t in told} == {os.fsencode(name).decode(errors="replace") for name in hostile}
    assert all(t["error"] for t in told)
    assert len(list((tmp_path / "failed").iterdir())) == 2 * len(hostile)
    assert len(agent.samples) == 1


async def test_a_defect_of_ours_fails_its_file_and_its_line_alone(tmp_path):
    agent, folder = watching(tmp_path)
    agent.mode = "defect"
    (tmp_path / "a.npy").write_bytes(npy(np.zeros(3, np.float32)))
    await folder.scan_once()
    await folder.scan_once()
    failed = result(tmp_path, "failed", "a.npy")
    assert failed["error"].startswith("defect: ZeroDivisionError@api_double.py:")
    assert await answers(b'{"x": [0, 1, 0]}\n', agent) == [{"line": 1, "error": failed["error"]}]


async def test_a_file_waits_for_the_first_model(tmp_path):
    agent, folder = watching(tmp_path)
    agent.mode = "no model"
    (tmp_path / "a.npy").write_bytes(npy(np.zeros(3, np.float32)))
    await folder.scan_once()
    assert await folder.scan_once() == 1
    assert (tmp_path / "a.npy").exists()


async def test_a_file_that_cannot_be_moved_keeps_no_other_from_its_turn(tmp_path):
    _, folder = watching(tmp_path)
    for name in ("a.npy", "b.npy"):
        (tmp_path / name).write_bytes(npy(np.array([0, 1, 0], np.float32)))
    await folder.scan_once()
    (tmp_path / "done" / "a.npy.json").mkdir()
    with pytest.raises(OSError, match="directory"):
        await folder.scan_once()
    assert (tmp_path / "a.npy").exists()
    assert result(tmp_path, "done", "b.npy")["label"] == 1


async def test_a_file_that_replaces_one_whose_result_was_not_written_gets_its_own_answer(tmp_path):
    _, folder = watching(tmp_path)
    (tmp_path / "a.npy").write_bytes(npy(np.array([0, 1, 0], np.float32)))
    await folder.scan_once()
    (tmp_path / "done" / "a.npy.json").mkdir()
    with pytest.raises(OSError, match="directory"):
        await folder.scan_once()
    (tmp_path / "done" / "a.npy.json").rmdir()
    (tmp_path / "a.npy").write_bytes(npy(np.array([0, 0, 1], np.float32)))
    os.utime(tmp_path / "a.npy", (1, 1))
    await folder.scan_once()
    await folder.scan_once()
    assert result(tmp_path, "done", "a.npy")["label"] == 2


async def test_a_second_file_of_the_same_name_replaces_nothing(tmp_path):
    _, folder = watching(tmp_path)
    for value in (0.2, 0.8):
        (tmp_path / "a.npy").write_bytes(npy(np.array([value, 0, 0], np.float32)))
        await folder.scan_once()
        await folder.scan_once()
    assert result(tmp_path, "done", "a.npy")["confidence"] == pytest.approx(0.2)
    assert result(tmp_path, "done", "a.2.npy")["confidence"] == pytest.approx(0.8)


async def test_a_disk_that_takes_no_result_does_not_make_a_file_be_answered_twice(tmp_path):
    agent, folder = watching(tmp_path)
    (tmp_path / "a.npy").write_bytes(npy(np.array([0.1, 0.9, 0], np.float32)))
    await folder.scan_once()
    (tmp_path / "done" / "a.npy.json").mkdir()  # in the way of the result
    for _ in range(3):
        with pytest.raises(OSError, match="directory"):
            await folder.scan_once()
    (tmp_path / "done" / "a.npy.json").rmdir()
    await folder.scan_once()
    assert len(agent.samples) == 1
    assert result(tmp_path, "done", "a.npy")["label"] == 1


async def test_in_mode_disabled_a_file_waits(tmp_path):
    agent, folder = watching(tmp_path)
    (tmp_path / "a.npy").write_bytes(npy(np.array([0.1, 0.9, 0], np.float32)))
    agent.mode = "disabled"
    for _ in range(3):
        await folder.scan_once()
    assert (tmp_path / "a.npy").exists()
    agent.mode = "answer_now"
    await folder.scan_once()
    assert (tmp_path / "done" / "a.npy").exists()


async def test_a_folder_that_goes_away_is_waited_for(tmp_path):
    agent, folder = watching(tmp_path / "disk")
    running = asyncio.create_task(folder.run())
    await asyncio.sleep(0.03)
    assert not running.done()
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "a.npy").write_bytes(npy(np.array([0.1, 0.9, 0], np.float32)))
    await until(lambda: bool(agent.samples))
    running.cancel()
    assert len(agent.samples) == 1


async def until(met: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not met():
            await asyncio.sleep(0)


UNSURE = np.array([0.4, 0.3, 0.3], np.float32)


async def test_a_correction_is_written_beside_the_files_answer(tmp_path):
    agent, folder = watching(tmp_path)
    running = asyncio.create_task(folder.run())
    for name in ("a.npy", "sure.npy"):
        (tmp_path / name).write_bytes(npy(UNSURE if name == "a.npy" else np.array([0.1, 0.9, 0], np.float32)))
    done = tmp_path / "done"
    await until((done / "sure.npy.json").exists)
    first = result(tmp_path, "done", "a.npy")
    assert (first["source"], first["label"]) == ("local", 0)
    await agent.verdict(first["answer_id"], 2)
    await until((done / "a.npy.correction.json").exists)
    running.cancel()
    told = result(tmp_path, "done", "a.npy.correction")
    assert (told["file"], told["kind"], told["source"], told["label"]) == ("a.npy", "correction", "hub", 2)
    assert told["answer_id"] == first["answer_id"]
    assert not (done / "sure.npy.correction.json").exists()


async def test_corrections_that_came_between_two_starts_or_come_later_are_written_by_the_second_start(tmp_path):
    agent, folder = watching(tmp_path)
    for name in ("early.npy", "late.npy"):
        (tmp_path / name).write_bytes(npy(UNSURE))
    await folder.scan_once()
    assert await folder.scan_once() == 2
    ids = {name: result(tmp_path, "done", name)["answer_id"] for name in ("early.npy", "late.npy")}
    (tmp_path / "done" / "broken.npy.json").write_text("{")
    await agent.verdict(ids["early.npy"], 1)
    again = FolderWatcher(tmp_path, SampleFeed(agent, "private"), 0.01, JsonLog(io.StringIO()))
    running = asyncio.create_task(again.run())
    await until((tmp_path / "done" / "early.npy.correction.json").exists)
    await agent.verdict(ids["late.npy"], 2)
    await until((tmp_path / "done" / "late.npy.correction.json").exists)
    running.cancel()
    assert [result(tmp_path, "done", f"{n}.npy.correction")["label"] for n in ("early", "late")] == [1, 2]


async def test_a_disk_that_refuses_a_correction_gets_it_with_a_later_scan(tmp_path):
    agent, folder = watching(tmp_path)
    running = asyncio.create_task(folder.run())
    (tmp_path / "a.npy").write_bytes(npy(UNSURE))
    await until((tmp_path / "done" / "a.npy").exists)
    blocked = tmp_path / "done" / "a.npy.correction.json"
    blocked.mkdir()
    await agent.verdict(result(tmp_path, "done", "a.npy")["answer_id"], 2)
    await asyncio.sleep(0.03)
    blocked.rmdir()
    await until(blocked.is_file)
    running.cancel()
    assert result(tmp_path, "done", "a.npy.correction")["label"] == 2


async def answers(text: bytes, agent: MemoryAgent | None = None, *, piped: bool = True) -> list[dict[str, Any]]:
    agent = agent or MemoryAgent()
    written: list[bytes] = []
    lines = JsonLines(SampleFeed(agent, "open"), written.append)
    if not piped:
        with Path("/proc/self/fd").joinpath(str(_file_of(text))).open("rb") as file:
            await lines.run(read_lines(file.fileno()))
        return [json.loads(line) for line in written]
    reading, writing = os.pipe()
    feeding = asyncio.create_task(asyncio.to_thread(_feed, writing, text))
    await lines.run(read_lines(reading))
    await feeding
    os.close(reading)
    return [json.loads(line) for line in written]


def _feed(fd: int, text: bytes) -> None:
    with os.fdopen(fd, "wb") as file:
        file.write(text)


def _file_of(text: bytes) -> int:
    fd = os.memfd_create("lines")
    os.write(fd, text)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


async def test_each_line_gets_a_line_back_from_a_pipe_and_from_a_file():
    text = b'{"x": [0.1, 0.9, 0], "id": "mine"}\n\n{"x": [0.4, 0.3, 0.3], "data_class": "private"}'
    for piped in (True, False):
        agent = MemoryAgent()
        first, second = await answers(text, agent, piped=piped)
        assert (first["line"], first["id"], first["label"], first["reason"]) == (1, "mine", 1, "confident")
        assert (second["line"], second["reason"], second["escalation_id"]) == (3, "unsure", "beef-2")
        assert [s.data_class for s in agent.samples] == ["open", "private"]


async def test_a_line_is_answered_while_the_next_is_still_typed():
    agent = MemoryAgent()
    written: list[bytes] = []
    reading, writing = os.pipe()
    lines = JsonLines(SampleFeed(agent, "open"), written.append)
    running = asyncio.create_task(lines.run(read_lines(reading)))
    for count in range(1, 50):
        os.write(writing, b'{"x": [0, 1,')
        for _ in range(count % 5):
            await asyncio.sleep(0)
        os.write(writing, b" 0]}\n")
        async with asyncio.timeout(60):  # a wake-up that comes too early must not block the loop in `read`
            while len(written) < count:
                await asyncio.sleep(0)
    os.close(writing)
    await running
    os.close(reading)


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (b"no json", "not a line of the form"),
        (b"\xff\xfe", "not a line of the form"),
        (b'{"y": 1}', "not a line of the form"),
        (b'{"x": [1, 2, 3], "dataclass": "private"}', "not a line of the form"),
        (b'{"x": "abc"}', "input 'x': "),
        (b'{"x": [1, "2", 3]}', "input 'x': the data is not FP32"),
        (b'{"x": [1, 0]}', "input 'x': shape [3] wants 3 values"),
        (b'{"x": [0, 0, 1e99]}', "the model takes 0..1"),
        (b'{"x": [0, 0, 2]}', "the model takes 0..1"),
        (b'{"x": ' + b"[" * 5000 + b"]" * 5000 + b"}", "n"),
        (b"1" * (MAX_LINE_BYTES + 1), "a line of more than"),
        (b"1" * (MAX_LINE_BYTES * 3), "a line of more than"),
    ],
)
async def test_a_wrong_line_is_told_and_the_next_is_answered(line, error):
    first, second = sorted(await answers(line + b'\n{"x": [0, 1, 0]}\n'), key=lambda told: told["line"])
    assert error in first["error"]
    assert (second["line"], second["label"]) == (2, 1)


async def test_hundreds_of_lines_are_answered_each_once():
    told = await answers(b'{"x": [0, 1, 0]}\n' * 500)
    assert sorted(t["line"] for t in told) == list(range(1, 501))
    assert len({t["answer_id"] for t in told}) == 500


async def piped(agent: MemoryAgent, text: bytes, wait_s: float, between: Callable[[dict[str, Any]], Any]) -> Any:
    """The lines' result and what was written; `between` is awaited once, after the first answer was written."""
    written: list[dict[str, Any]] = []
    reading, writing = os.pipe()
    _feed(writing, text)
    lines = JsonLines(SampleFeed(agent, "open"), lambda line: written.append(json.loads(line)))
    running = asyncio.create_task(lines.run(read_lines(reading), wait_s))
    await until(lambda: bool(written))
    await between(written[0])
    result = await running
    os.close(reading)
    return result, written


async def test_a_correction_is_a_line_of_its_own_after_its_answer():
    agent = MemoryAgent()

    async def correct(answer: dict[str, Any]) -> None:
        await agent.verdict(answer["answer_id"], 2)

    result, (answer, correction) = await piped(agent, b'{"x": [0.4, 0.3, 0.3], "id": "mine"}', 60, correct)
    assert (answer["kind"], answer["source"], answer["label"]) == ("answer", "local", 0)
    assert (correction["kind"], correction["source"], correction["label"]) == ("correction", "hub", 2)
    assert {(t["line"], t["id"], t["answer_id"]) for t in (answer, correction)} == {(1, "mine", answer["answer_id"])}
    assert (result.answered, result.corrected, result.owed) == (1, 1, 0)


async def test_a_correction_that_does_not_come_is_waited_for_no_longer_than_told():
    async def nothing(_: dict[str, Any]) -> None: ...

    result, written = await piped(MemoryAgent(), b'{"x": [0.4, 0.3, 0.3]}\n{"x": [1]}', 0.01, nothing)
    assert len(written) == 2
    assert (result.answered, result.failed, result.corrected, result.owed) == (1, 1, 0, 1)


async def test_a_question_that_ended_without_a_verdict_is_not_waited_for():
    agent = MemoryAgent()

    async def refuse(answer: dict[str, Any]) -> None:
        await agent.refuse(answer["answer_id"])

    async with asyncio.timeout(60):
        result, _ = await piped(agent, b'{"x": [0.4, 0.3, 0.3]}', 3600, refuse)
    assert result.owed == 0

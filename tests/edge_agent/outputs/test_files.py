"""Outputs into a folder and into a file of JSON lines."""

import errno
import json
from pathlib import Path

import pytest

from edge_agent.outputs.delivery import DeliveryError, OutputMessage, RecordSelection
from edge_agent.outputs.files import FolderOutput, LinesOutput
from tests.edge_agent.doubles.outputs_bench import UNSURE, BenchAgent, section


async def messages(count: int, *, corrected: bool = False) -> list[OutputMessage]:
    agent = BenchAgent()
    for _ in range(count):
        answer = await agent.answer(UNSURE)
        if corrected:
            await agent.verdict(answer.id, 1)
    selection = RecordSelection(section())
    return [selection.encode(record, agent.manifest, "demo--a") for record in agent.records]


async def test_each_record_becomes_a_file_of_its_own(tmp_path: Path):
    batch = await messages(2, corrected=True)
    await FolderOutput(section(kind="folder", path=str(tmp_path / "out"))).send(batch)
    first = f"{1:032x}"
    names = sorted(each.name for each in (tmp_path / "out").iterdir())
    assert len(names) == 4
    assert names[:2] == [f"{first}.correction.json", f"{first}.json"]
    assert json.loads((tmp_path / "out" / f"{first}.json").read_bytes())["kind"] == "answer"


async def test_a_full_folder_is_waited_for_and_the_same_record_again_is_no_more(tmp_path: Path):
    batch = await messages(3)
    output = FolderOutput(section(kind="folder", path=str(tmp_path), max_files=2))
    with pytest.raises(DeliveryError, match="2 files lie there"):
        await output.send(batch)
    await output.send(batch[:2])
    with pytest.raises(DeliveryError):
        await output.send(batch[2:])
    next(tmp_path.iterdir()).unlink()
    await output.send(batch[2:])
    assert len(list(tmp_path.iterdir())) == 2


async def test_lines_are_appended_and_the_file_is_rotated(tmp_path: Path):
    path = tmp_path / "answers.jsonl"
    output = LinesOutput(section(path=str(path), max_bytes=65_536, keep=2))
    (message,) = await messages(1)
    per_file = -(-65_536 // (len(message.body) + 1))
    for _ in range(4):
        await output.send([message] * per_file)
    await output.send([message])
    assert sorted(each.name for each in tmp_path.iterdir()) == ["answers.jsonl", "answers.jsonl.1", "answers.jsonl.2"]
    lines = path.read_bytes().splitlines()
    assert [json.loads(line)["answer_id"] for line in lines] == [message.record.id]
    assert len((tmp_path / "answers.jsonl.2").read_bytes().splitlines()) == per_file


async def test_without_former_files_a_full_one_begins_anew(tmp_path: Path):
    output = LinesOutput(section(path=str(tmp_path / "a"), max_bytes=65_536, keep=0))
    (message,) = await messages(1)
    await output.send([message] * 300)
    assert list(tmp_path.iterdir()) == []


async def test_the_piece_of_a_line_that_a_crash_left_is_taken_away(tmp_path: Path):
    path = tmp_path / "answers.jsonl"
    path.write_bytes(b'{"whole": 1}\n{"half": ')
    await LinesOutput(section(path=str(path))).send(await messages(1))
    lines = path.read_bytes().splitlines()
    assert json.loads(lines[0]) == {"whole": 1}
    assert json.loads(lines[1])["kind"] == "answer"
    assert len(lines) == 2


@pytest.mark.parametrize("kind", ["folder", "lines"])
async def test_a_disk_that_refuses_is_waited_for(tmp_path: Path, kind):
    file = tmp_path / "file"
    file.write_bytes(b"")
    output = (FolderOutput if kind == "folder" else LinesOutput)(section(kind=kind, path=str(file / "below")))
    with pytest.raises(DeliveryError):
        await output.send(await messages(1))


async def test_a_disk_that_fills_while_a_line_is_written_leaves_whole_lines(tmp_path: Path, monkeypatch):
    path = tmp_path / "answers.jsonl"
    output = LinesOutput(section(path=str(path)))
    batch = await messages(1)
    await output.send(batch)
    before = path.read_bytes()
    real = Path.open

    def full(self, mode="r", *rest, **options):
        opened = real(self, mode, *rest, **options)
        if mode != "ab":
            return opened

        class Full:
            def __enter__(self):
                return self

            def __exit__(self, *_):
                opened.close()

            def fileno(self):
                return opened.fileno()

            def write(self, data):
                opened.write(data[:10])
                opened.flush()
                raise OSError(errno.ENOSPC, "No space left on device")

        return Full()

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(DeliveryError, match="No space"):
        await output.send(batch)
    monkeypatch.undo()
    assert path.read_bytes() == before

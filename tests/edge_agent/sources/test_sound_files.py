"""WAV files in the watched folder: one answer for each window, and broken ones refused by a line."""

import io
import json

import msgspec
import numpy as np
import pytest

from edge_agent.sources.feed import SampleFeed
from edge_agent.sources.files.folder import FolderWatcher
from models.bundle.signal_preparation import SoundPreparation
from models.runtime.sounds import prepare_sound
from tests.edge_agent.doubles.api_double import MemoryAgent
from tests.models.runtime.test_sounds import RATE, tone, write_wav
from wire.process.logging import JsonLog

SHORT = SoundPreparation(mels=3, frames=10)  # 1,840 samples


class SoundAgent(MemoryAgent):
    """The double, with a model whose input is ten frames of three bands; every answer is unsure."""

    def __init__(self, preparation=SHORT) -> None:
        super().__init__()
        made = self.runner.manifest
        spec = msgspec.structs.replace(made.input, shape=(3, 10), low=-50.0, high=50.0)
        self.sounds = msgspec.structs.replace(made, input=spec, preparation=preparation)
        self.heard: list[np.ndarray] = []

    @property
    def manifest(self):
        return self.sounds

    async def infer(self, sample):
        self.heard.append(sample.x)
        return await super().infer(msgspec.structs.replace(sample, x=np.array([0.4, 0.3, 0.3], np.float32)))


async def watch(folder, agent, files):
    watcher = FolderWatcher(folder, SampleFeed(agent, "private"), 0.01, JsonLog(io.StringIO()))
    for name, data in files.items():
        (folder / name).write_bytes(data)
    await watcher.scan_once()
    await watcher.scan_once()
    return watcher


def names_in(folder):
    return sorted(each.name for each in folder.iterdir())


async def test_a_recording_of_one_window_has_one_answer(tmp_path):
    agent, waves = SoundAgent(), tone(440, RATE, 0.12)
    await watch(tmp_path, agent, {"a.wav": write_wav(waves, 2)})
    assert names_in(tmp_path / "done") == ["a.wav", "a.wav.json"]
    wanted = prepare_sound(waves[: SHORT.samples], SHORT)  # in the bands above the tone 16 bits leave their own noise
    np.testing.assert_allclose(agent.heard[0][0], wanted[0], atol=0.01)


@pytest.mark.parametrize("rate", [RATE, 44_100])
async def test_a_longer_recording_has_an_answer_and_a_correction_for_each_window(tmp_path, rate):
    agent = SoundAgent()
    watcher = await watch(tmp_path, agent, {"a.wav": write_wav(tone(440, rate, 0.4), 2, rate=rate)})
    results = [f"a.wav.{place}.json" for place in (1, 2, 3)]
    assert names_in(tmp_path / "done") == ["a.wav", *results]
    assert watcher.to_json()["answered"] == 3
    answers = [json.loads((tmp_path / "done" / name).read_text()) for name in results]
    await agent.verdict(answers[1]["answer_id"], 2)
    again = FolderWatcher(tmp_path, SampleFeed(agent, "private"), 0.01, JsonLog(io.StringIO()))
    await again.restore_owed()  # after a restart, too
    await again.scan_once()
    correction = json.loads((tmp_path / "done" / "a.wav.2.correction.json").read_text())
    assert (correction["answer_id"], correction["label"]) == (answers[1]["answer_id"], 2)


async def test_broken_and_short_ones_are_refused_by_one_line_and_the_next_is_answered(tmp_path):
    whole = write_wav(tone(440, RATE, 0.2), 2)
    broken = {
        "cut.wav": whole[:-7], "empty.wav": b"", "noise.wav": bytes(range(256)),
        "short.wav": write_wav(tone(440, RATE, 0.05), 2),
        "adpcm.wav": whole[:20] + b"\x02\x00" + whole[22:], "silent.wav": write_wav(np.zeros(0), 2),
    }  # fmt: skip
    agent = SoundAgent()
    watcher = await watch(tmp_path, agent, {**broken, "whole.wav": whole})
    assert len(agent.heard) == 1
    lines = {name: json.loads((tmp_path / "failed" / f"{name}.json").read_text())["error"] for name in broken}
    assert "0.05 s of sound, a sample is made of 0.12 s" in lines["short.wav"]
    assert "format 2" in lines["adpcm.wav"]
    assert not [line for line in lines.values() if "\n" in line or "defect" in line]
    assert watcher.to_json()["dropped"] == {"unfit": len(broken)}


async def test_a_recording_of_too_many_windows_is_to_be_cut(tmp_path):
    agent = SoundAgent(msgspec.structs.replace(SHORT, hop=10))
    await watch(tmp_path, agent, {"a.wav": write_wav(tone(440, RATE, 1), 2)})
    assert "cut it" in json.loads((tmp_path / "failed" / "a.wav.json").read_text())["error"]


async def test_nobody_says_how_sound_becomes_a_sample(tmp_path):
    await watch(tmp_path, SoundAgent(None), {"a.wav": write_wav(tone(440, RATE, 0.2), 2)})
    assert 'kind = "sound"' in json.loads((tmp_path / "failed" / "a.wav.json").read_text())["error"]

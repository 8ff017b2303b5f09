"""Speech, synthesised: twenty commands by espeak-ng in many voices, with noise, as log-mel spectrograms 40 x 64.

The synthesiser is Debian's package espeak-ng (GPL-3.0-or-later): formants by rule, no recorded voice. No public
recordings can be had from where the project is built.
"""

import io
import subprocess
import wave
from functools import cache
from itertools import product
from typing import cast

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from benchmarks.forge.unseen.plain_training import PlainTraining, load_or_train_plain, split_by_group
from models.forge.data.types import Data, ForgeError
from models.zoo.training import zoo_cache_folder

COMMANDS = (
    *("yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go"),
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"),
)
BANDS, FRAMES, RATE_HZ = 40, 64, 22_050
_ACCENTS = ("en-gb", "en-us", "en-gb-scotland", "en-gb-x-rp", "en-029", "en-gb-x-gbclan")
_VOICES = ("", "+m1", "+m2", "+m3", "+m4", "+m5", "+m6", "+m7", "+f1", "+f2", "+f3", "+f4", "+f5", "+croak", "+whisper")
_TAKES = 5
WINDOW, HOP = 512, 330  # sound samples of a frame, and from one to the next
_SEED = 33

Floats = npt.NDArray[np.float32]


class SpeechNet(nn.Module):
    """Spectrograms `[n, 1, 40, 64]` -> logits `[n, 20]`: four convolutions and a mean."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs in ((1, width), (width, width), (width, 2 * width), (2 * width, 2 * width)):
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]
        self.body = nn.Sequential(*layers)
        self.answer = nn.Sequential(nn.Dropout(0.3), nn.Linear(2 * width, len(COMMANDS)))

    def forward(self, x: Tensor) -> Tensor:
        return cast("Tensor", self.answer(self.body(x).mean((2, 3))))


def build_model() -> nn.Module:
    """The net, trained once and kept."""
    return load_or_train_plain("speech", SpeechNet, samples, PlainTraining(10))


@cache
def samples() -> Data:
    """9,000 spectrograms `[n, 1, 40, 64]` float32 in 0..1 of `COMMANDS`; parts by random, voices in all of them.

    Spoken once and kept. Raises ForgeError if espeak-ng is not installed.
    """
    path = zoo_cache_folder() / "unseen-speech.npz"
    if not path.exists():
        x, y = _speak_all()
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(".new.npz")
        np.savez(fresh, allow_pickle=False, x=x, y=y)
        fresh.replace(path)
    with np.load(path, allow_pickle=False) as file:
        x, y = file["x"].astype(np.float32) / np.float32(255), file["y"]
    number = np.arange(len(y))
    return split_by_group(x, y, number, COMMANDS, speaker=number // (len(COMMANDS) * _TAKES))


def _speak_all() -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    rng = np.random.default_rng(_SEED)
    x, y = [], []
    for accent, voice, number, _ in product(_ACCENTS, _VOICES, range(len(COMMANDS)), range(_TAKES)):
        x.append(np.rint(255 * speak_spectrogram(COMMANDS[number], accent + voice, rng)).astype(np.uint8)[None])
        y.append(number)
    return np.stack(x), np.array(y, np.int64)


def speak_spectrogram(word: str, voice: str, rng: np.random.Generator) -> Floats:
    """Spectrogram `[40, 64]` of a word in a voice of espeak-ng, at some speed and pitch, in some room.

    Raises ForgeError if espeak-ng is not installed.
    """
    speed, pitch = int(rng.integers(120, 260)), int(rng.integers(20, 80))
    return make_spectrogram(_add_room(_speak(word, voice, speed, pitch), rng))


def _speak(word: str, voice: str, speed: int, pitch: int) -> Floats:
    """Samples in -1..1 of one word; `speed` in words a minute, `pitch` 0..99."""
    command = ["espeak-ng", "-v", voice, "-s", str(speed), "-p", str(pitch), "--stdout", word]
    try:
        found = subprocess.run(command, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise ForgeError(f"espeak-ng cannot speak ({error}): apt-get install espeak-ng") from None
    data = bytearray(found.stdout)
    data[4:8] = (len(data) - 8).to_bytes(4, "little")  # it streams, so it does not know the length
    data[40:44] = (len(data) - 44).to_bytes(4, "little")
    with wave.open(io.BytesIO(bytes(data))) as file:
        return np.frombuffer(file.readframes(file.getnframes()), np.int16).astype(np.float32) / np.float32(2**15)


def _add_room(sound: Floats, rng: np.random.Generator) -> Floats:
    """One window of sound: the word somewhere in it, at some loudness, with noise of some colour and an echo."""
    room = np.zeros(WINDOW + HOP * (FRAMES - 1), np.float32)
    sound = sound[: len(room)]
    start = int(rng.integers(0, len(room) - len(sound) + 1))
    room[start : start + len(sound)] += sound * np.float32(rng.lognormal(0, 0.5))
    delay = int(rng.integers(400, 3000))
    room[delay:] += np.float32(rng.uniform(0, 0.5)) * room[:-delay]
    noise = rng.normal(size=len(room))
    for _ in range(int(rng.integers(0, 3))):
        noise = (noise + np.roll(noise, 1)) / 2
    level = 10 ** rng.uniform(-2.6, -0.9)
    return np.asarray(room + level * noise / noise.std(), np.float32)


def make_spectrogram(sound: Floats) -> Floats:
    """Log-mel spectrogram `[40, 64]` of a window of sound, 60 dB below its loudest value -> 0, the loudest -> 1."""
    frames = np.stack([sound[i * HOP : i * HOP + WINDOW] for i in range(FRAMES)]) * np.hanning(WINDOW)
    power = np.abs(np.fft.rfft(frames)) ** 2 @ _mel_filters().T
    level = 10 * np.log10(power.T + 1e-10)
    return np.asarray(np.clip((level - level.max() + 60) / 60, 0, 1), np.float32)


@cache
def _mel_filters() -> npt.NDArray[np.float64]:
    """Triangular filters `[40, bins]` equally spaced in mels between 80 Hz and 8 kHz (Stevens et al. 1937)."""
    low, high = (2595 * np.log10(1 + hz / 700) for hz in (80.0, 8000.0))
    edges = 700 * (10 ** (np.linspace(low, high, BANDS + 2) / 2595) - 1)
    bins = np.arange(WINDOW // 2 + 1) * RATE_HZ / WINDOW
    rise = (bins - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    fall = (edges[2:, None] - bins) / (edges[2:] - edges[1:-1])[:, None]
    return np.asarray(np.clip(np.minimum(rise, fall), 0, None))

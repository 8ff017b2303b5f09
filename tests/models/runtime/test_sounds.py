"""Sound becomes a log-mel sample: held against the feature code of transformers and the resampling of scipy."""

import io
import struct
import wave

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.bundle.preparation import complete_preparation, parse_preparation, preparation_shape
from models.bundle.signal_preparation import SoundPreparation
from models.runtime.sound_files import WavError, decode_wav
from models.runtime.sounds import cut_sound, mel_filters, prepare_sound, resample_sound

RATE = 16_000


def sound(**keys) -> SoundPreparation:
    made = complete_preparation(parse_preparation({"kind": "sound", **keys}), (40, 98))
    assert isinstance(made, SoundPreparation)
    return made


def noise(count, seed=1):
    return np.random.default_rng(seed).normal(0, 0.1, count).astype(np.float32)


def tone(hz, rate, seconds=0.5):
    return np.sin(2 * np.pi * hz * np.arange(int(rate * seconds)) / rate).astype(np.float32)


@pytest.mark.parametrize("scale", ["htk", "slaney"])
@pytest.mark.parametrize("area", [True, False])
@pytest.mark.parametrize("centred", [True, False])
def test_the_sample_is_what_transformers_makes_of_the_same_sound(scale, area, centred):
    audio = pytest.importorskip("transformers.audio_utils")
    p = sound(scale=scale, area=area, centred=centred, low_hz=20, high_hz=7600, log="log10")
    waves = noise(p.samples)
    filters = audio.mel_filter_bank(
        p.fft // 2 + 1, p.mels, 20, 7600, RATE, norm="slaney" if area else None, mel_scale=scale
    )
    np.testing.assert_allclose(mel_filters(p).T, filters, atol=1e-9)
    wanted = audio.spectrogram(
        waves, audio.window_function(p.fft, "hann"), p.fft, p.step, power=2.0, center=centred, mel_filters=filters,
        mel_floor=p.floor, log_mel="log10",
    )  # fmt: skip
    np.testing.assert_allclose(prepare_sound(waves, p), wanted[:, : p.frames], atol=2e-4)


def test_the_sample_has_the_models_axes():
    for order, shape in (("mt", (40, 98)), ("tm", (98, 40)), ("cmt", (1, 40, 98))):
        p = complete_preparation(parse_preparation({"kind": "sound", "order": order, "mean": -4, "std": 4}), shape)
        assert isinstance(p, SoundPreparation)
        assert preparation_shape(p) == shape
        assert prepare_sound(noise(p.samples), p).shape == shape


def test_a_recording_is_cut_into_windows_as_a_signal_is():
    p = sound(hop=RATE // 2)
    waves = noise(3 * RATE)
    windows = cut_sound(waves, p)
    assert windows.shape == (1 + (3 * RATE - p.samples) // (RATE // 2), p.samples)
    np.testing.assert_array_equal(windows[1], waves[RATE // 2 : RATE // 2 + p.samples])
    assert len(cut_sound(waves[: p.samples - 1], p)) == 0


@pytest.mark.parametrize("rate", [8000, 11_025, 22_050, 32_000, 44_100, 48_000])
def test_a_tone_keeps_its_pitch_and_level_at_another_rate(rate):
    made = resample_sound(tone(1000, rate), rate, RATE)
    middle = slice(400, -400)
    np.testing.assert_allclose(made[middle], tone(1000, RATE)[: len(made)][middle], atol=0.01)
    assert abs(len(made) - RATE // 2) <= 1


def test_what_the_lower_rate_cannot_hold_is_taken_away():
    assert np.abs(resample_sound(tone(15_000, 48_000), 48_000, RATE)[400:-400]).max() < 0.02


def test_rates_without_a_common_divisor_are_refused():
    with pytest.raises(ValueError, match="cannot be brought"):
        resample_sound(noise(100), 44_101, RATE)


@pytest.mark.parametrize(
    ("keys", "line"),
    [({"rate_hz": 1}, "rate_hz"), ({"fft": 8}, "fft"), ({"step": 500}, "step"), ({"high_hz": 9000}, "high_hz"),
     ({"floor": 0}, "floor"), ({"std": 0}, "std"), ({"mels": 500}, "mels"), ({"log": "lg"}, "log")],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused(keys, line):
    with pytest.raises(ValueError, match=line):
        sound(**keys)


def write_wav(values, width, channels=1, rate=RATE):
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        if width == 1:
            file.writeframes((np.round(values * 127) + 128).astype(np.uint8).tobytes())
        else:
            whole = np.round(values.astype(np.float64) * (2 ** (8 * width - 1) - 1)).astype("<i4")
            file.writeframes(whole.view(np.uint8).reshape(-1, 4)[:, :width].tobytes())
    return out.getvalue()


@pytest.mark.parametrize("width", [1, 2, 3, 4])
@pytest.mark.parametrize("channels", [1, 2])
def test_wav_files_of_each_width_are_read_as_the_standard_library_writes_them(width, channels):
    values = tone(440, RATE, 0.1)
    found = decode_wav(write_wav(np.repeat(values, channels), width, channels))
    assert found.rate_hz == RATE
    np.testing.assert_allclose(found.samples, values, atol=1.6 * 2.0 ** -(8 * width - 1) + 1e-6)


@pytest.mark.parametrize(
    "data",
    [b"", b"RIFF", b"RIFF\0\0\0\0WAVE", b"RIFF\0\0\0\0WAVEdata\0\0\0\0", write_wav(tone(440, RATE, 0.1), 2)[:-1],
     write_wav(tone(440, RATE, 0.1), 2)[:40], write_wav(np.zeros(0), 2)],
)  # fmt: skip
def test_a_broken_wav_is_refused_by_one_line(data):
    with pytest.raises(WavError) as refused:
        decode_wav(data)
    assert "\n" not in str(refused.value)


@given(st.integers(0, 80), st.binary(min_size=1, max_size=4))
def test_whatever_is_damaged_in_a_wav_it_is_sound_or_one_line(at, damage):
    whole = write_wav(tone(440, RATE, 0.01), 2)
    data = whole[:at] + damage + whole[at + len(damage) :]
    try:
        found = decode_wav(data)
    except WavError:
        return
    assert np.isfinite(found.samples).all()
    assert np.abs(found.samples).max() <= 1


def written_wav(data: bytes, riff_size: int, data_size: int) -> bytes:
    """A WAV of 16 bits, one channel, 16 kHz, with these lengths in its header."""
    form = b"fmt " + struct.pack("<IHHIIHH", 16, 1, 1, RATE, 2 * RATE, 2, 16)
    return b"RIFF" + struct.pack("<I", riff_size) + b"WAVE" + form + b"data" + struct.pack("<I", data_size) + data


@pytest.mark.parametrize(
    ("riff_size", "data_size"),
    [
        (0xFFFFFFFF, 0xFFFFFFFF),  # ffmpeg into a pipe
        (0x7FFFFFFF, 0x7FFFFFDB),  # sox into a pipe
        (0x80000024, 0x80000000),  # arecord into a pipe
        (36, 0),  # a recorder that was ended before it came back to its header
        (0, 0),
    ],
)
def test_a_recording_whose_length_was_not_known_is_read_to_the_end_of_the_file(riff_size, data_size):
    data = (noise(1000) * 32767).astype("<i2").tobytes()
    plain = decode_wav(written_wav(data, 36 + len(data), len(data)))
    for rest in (b"", b"\x01"):  # the last moment is cut in two
        found = decode_wav(written_wav(data + rest, riff_size, data_size))
        np.testing.assert_array_equal(found.samples, plain.samples)


@pytest.mark.parametrize(
    ("data_size", "there"), [(2000, 1000), (64 << 20, 1000), (0, 0), (0xFFFFFFFF, 0), (0xFFFFFFFF, 1)]
)
def test_a_recording_that_is_shorter_than_it_says_or_empty_is_refused(data_size, there):
    with pytest.raises(WavError, match="cut short"):
        decode_wav(written_wav(bytes(there), 36 + data_size & 0xFFFFFFFF, data_size))


def test_an_empty_part_in_the_middle_does_not_take_what_follows_for_sound():
    listed = b"LIST" + struct.pack("<I", 4) + b"INFO"
    with pytest.raises(WavError, match="cut short"):
        decode_wav(written_wav(listed, 36 + len(listed), 0))

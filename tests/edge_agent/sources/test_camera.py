"""Cameras in the configuration, and what is told to the process that decodes one."""

import pytest

from edge_agent.app.config import load_config
from edge_agent.app.sources import check_input, check_sources
from edge_agent.sources.cameras.camera import CameraSettings, make_camera_job
from edge_agent.sources.source import SourceError
from models.bundle.preparation import PicturePreparation
from models.runtime.runner import echo_manifest
from tests.models.bundle.test_preparation import manifest_of
from wire.process.exit_codes import ExitCode, ExitError

PREPARATION = PicturePreparation(8, 8)
SPEC = manifest_of(PREPARATION).input


def job(**changes):
    return make_camera_job(
        CameraSettings(**{"name": "c", "url": "rtsp://10.0.0.7:8554/a?b=1"} | changes), PREPARATION, SPEC
    )


def test_the_password_comes_from_its_file_and_is_quoted(tmp_path):
    (tmp_path / "p").write_text(" s@cret/1 \n")
    assert job(user="me@x", password_file=str(tmp_path / "p")).url == "rtsp://me%40x:s%40cret%2F1@10.0.0.7:8554/a?b=1"
    assert job().url == "rtsp://10.0.0.7:8554/a?b=1"
    with pytest.raises(SourceError, match="password_file"):
        job(user="me", password_file=str(tmp_path / "none"))


def test_no_stream_can_make_the_decoder_open_a_file_or_another_kind_of_address():
    for url in ("rtsp://h/a", "rtsps://h/a", "http://h/a", "https://h/a"):
        assert "file" not in job(url=url).options["protocol_whitelist"].split(",")
    assert "hls" not in job(url="http://h/a").options["format_whitelist"]
    device = job(url="/dev/video0")
    assert (device.url, device.format, device.options) == ("/dev/video0", "v4l2", {})


@pytest.fixture
def config(tmp_path):
    def write(text):
        (tmp_path / "agent.toml").write_text('bundle = "b"\n' + text)
        return tmp_path / "agent.toml"

    return write


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('[[camera]]\nurl = "rtsp://me:pa55word@10.0.0.7/a"', "give user and password_file"),
        ('[[camera]]\nurl = "rtsp://pa55word@10.0.0.7/a"', "give user and password_file"),
        ('[[camera]]\nurl = "file:///etc/pa55word"', "rtsp://"),
        ('[[camera]]\nurl = "/etc/pa55word"', "rtsp://"),
        ('[[camera]]\nurl = "rtsp://"', "rtsp://"),
        ('[[camera]]\nurl = "rtsp://h:99999/"', "rtsp://"),
        ('[[camera]]\nurl = "rtsp://h/a\\nb"', "rtsp://"),
        ('[[camera]]\nname = "a"', "url"),
        ('[[camera]]\nurl = "/dev/video0"\nframes_per_s = 0', "frames_per_s"),
        ('[[camera]]\nurl = "/dev/video0"\nfps = 3', "fps"),
        ('[input]\nkind = "picture"\nfitt = "cover"', "fitt"),
    ],
)
def test_a_camera_that_cannot_be_is_refused_with_one_line_that_repeats_no_address(config, text, line):
    with pytest.raises(ExitError, match=line) as caught:
        load_config(config(text), {})
    assert caught.value.code is ExitCode.CONFIG
    assert "pa55word" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_two_cameras_of_one_name_are_refused(config):
    twice = load_config(
        config('[[camera]]\nurl = "/dev/video0"\n[[camera]]\nurl = "/dev/video1"\nname = "camera-1"\n'), {}
    )
    with pytest.raises(ExitError, match="one name"):
        check_sources(twice)


def test_an_input_section_that_the_bundle_contradicts_is_refused_at_the_start(config):
    asked = load_config(config('[input]\nkind = "picture"\nfit = "cover"\n'), {})
    with pytest.raises(ExitError, match="fit = 'cover' and 'stretch': leave"):
        check_input(asked, manifest_of(PREPARATION))
    with pytest.raises(ExitError, match="the model takes \\[10\\]"):
        check_input(asked, echo_manifest())
    check_input(load_config(config('[input]\nkind = "picture"\n'), {}), manifest_of(PREPARATION))
    check_input(asked, None)

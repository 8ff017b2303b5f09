"""The `[[output]]` table: what is refused at start, in one line."""

import re
from pathlib import Path

import pytest

from edge_agent.app.config import load_config
from edge_agent.outputs.settings import fill_topic
from tests import ROOT
from wire.process.exit_codes import ExitCode, ExitError

MQTT = 'kind = "mqtt"\nbroker = "mqtts://broker.example"'


def load(tmp_path: Path, *outputs: str, top: str = ""):
    file = tmp_path / "agent.toml"
    file.write_text(f'bundle = "b"\n{top}\n' + "".join(f"[[output]]\n{each}\n" for each in outputs))
    return load_config(file, {})


def test_paths_are_relative_to_the_file_and_each_kind_is_understood(tmp_path: Path):
    config = load(
        tmp_path,
        f'name = "ha"\n{MQTT}\nusername = "u"\npassword_file = "p"\nhome_assistant = "homeassistant"',
        'name = "hook"\nkind = "webhook"\nurl = "https://a.example/x"\ntoken_file = "t"',
        'name = "files"\nkind = "folder"\npath = "out"',
        'name = "lines"\nkind = "lines"\npath = "/var/answers.jsonl"',
    )
    assert [each.path for each in config.output] == ["", "", str(tmp_path / "out"), "/var/answers.jsonl"]
    assert config.output[0].password_file == str(tmp_path / "p")
    assert config.output[1].token_file == str(tmp_path / "t")
    assert [each.leaves_machine for each in config.output] == [True, True, False, False]


@pytest.mark.parametrize(
    ("output", "line"),
    [
        ('kind = "lines"\npath = "a"', "name"),
        ('name = "a b"\nkind = "lines"\npath = "a"', "name"),
        ('name = "a"\nkind = "pigeon"', "kind"),
        ('name = "a"\nkind = "lines"', "needs path"),
        ('name = "a"\nkind = "mqtt"', "needs broker"),
        ('name = "a"\nkind = "webhook"', "needs url"),
        ('name = "a"\nkind = "lines"\npath = "a"\nurl = "http://127.0.0.1/"', "has no key url"),
        ('name = "a"\nkind = "lines"\npath = "a"\npfad = "b"', "did you mean path"),
        ('name = "a"\nkind = "mqtt"\nbroker = "http://a"', "broker"),
        ('name = "a"\nkind = "mqtt"\nbroker = "mqtts://a:99999"', "broker"),
        ('name = "a"\nkind = "mqtt"\nbroker = "mqtts://u:p@a"', "broker"),
        ('name = "a"\nkind = "mqtt"\nbroker = "mqtt://a.example"', "has to be mqtts://"),
        (f'name = "a"\n{MQTT}\npassword_file = "p"', "without a username"),
        (f'name = "a"\n{MQTT}\ntls_key = "p"', "belong together"),
        (f'name = "a"\n{MQTT}\ntopic = "a/#"', "topic"),
        (f'name = "a"\n{MQTT}\ntopic = "{{colour}}"', "unknown placeholder"),
        (f'name = "a"\n{MQTT}\ntopic = "{{label}}"\nhome_assistant = "homeassistant"', "one topic"),
        ('name = "a"\nkind = "webhook"\nurl = "http://a.example/"', "has to be https://"),
        ('name = "a"\nkind = "webhook"\nurl = "ftp://a.example/"', "url"),
        ('name = "a"\nkind = "lines"\npath = "a"\nmin_confidence = nan', "min_confidence"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_line(tmp_path: Path, output, line):
    with pytest.raises(ExitError) as refused:
        load(tmp_path, output)
    assert refused.value.code is ExitCode.CONFIG
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)


def test_two_outputs_have_two_names_and_two_files(tmp_path: Path):
    with pytest.raises(ExitError, match="two are named 'a'"):
        load(tmp_path, *['name = "a"\nkind = "folder"\npath = "x"'] * 2)
    with pytest.raises(ExitError, match="two write to"):
        load(tmp_path, 'name = "a"\nkind = "lines"\npath = "x"', 'name = "b"\nkind = "lines"\npath = "x"')


@pytest.mark.parametrize(
    "output", [MQTT, 'kind = "mqtt"\nbroker = "mqtt://10.0.0.7"', 'kind = "webhook"\nurl = "https://a.example/"']
)
def test_an_air_gapped_device_reaches_this_machine_alone(tmp_path: Path, output):
    with pytest.raises(ExitError, match="airgap = true"):
        load(tmp_path, f'name = "a"\n{output}\nallow_plaintext = true', top="airgap = true")
    load(tmp_path, 'name = "a"\nkind = "mqtt"\nbroker = "mqtt://127.0.0.1"', top="airgap = true")


def test_what_the_page_shows_is_a_sound_configuration(tmp_path: Path):
    blocks = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "outputs.md").read_text(), re.DOTALL)
    assert len(blocks) == 3
    file = tmp_path / "agent.toml"
    file.write_text('bundle = "b"\n' + "\n".join(blocks))
    assert [each.name for each in load_config(file, {}).output] == ["log", "alarms", "home", "site"]


def test_clear_text_to_another_machine_has_to_be_asked_for(tmp_path: Path):
    load(tmp_path, 'name = "a"\nkind = "mqtt"\nbroker = "mqtt://10.0.0.7"\nallow_plaintext = true')


def test_what_a_sample_brings_cannot_add_a_level_to_a_topic():
    assert fill_topic("a/{label}/{kind}", {"label": "x/#+\0", "kind": ""}) == "a/x____/_"

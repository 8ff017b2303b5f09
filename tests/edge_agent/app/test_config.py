"""Configuration: unknown keys, relative paths, environment; and the process that refuses to start on a bad one."""

import json
import re
import tomllib
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_agent.app.config import PREFIX, AgentConfig, load_config
from edge_agent.system.settings import AgentSettings, OutboxLimits
from tests.examples import count_examples
from wire.process.config import list_known_keys
from wire.process.exit_codes import ExitCode, ExitError

LEAST = 'bundle = "b"\n'


def refused(file: Path | None, environment: dict[str, str] | None = None, code: ExitCode = ExitCode.CONFIG) -> str:
    with pytest.raises(ExitError) as caught:
        load_config(file, environment or {})
    assert caught.value.code is code
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        file = tmp_path / "agent.toml"
        file.write_text(text)
        return file

    return write


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[api]\nprot = 1", "unknown key 'api.prot', did you mean 'api.port'?"),
        ("bundl = 1", "unknown key 'bundl', did you mean 'bundle'?"),
        ("[folde]\npath = 'x'", "unknown key 'folde.path', did you mean 'folder.path'?"),
        ("[outbx]", "unknown key 'outbx', did you mean"),
        ("x = {a = 1}", "unknown key 'x.a', did you mean"),
    ],
)
def test_an_unknown_key_names_the_nearest_known_one(write, text, line):
    assert line in refused(write(text))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "'bundle' is missing"),
        ("bundle = 3", "'bundle': must be text, not a whole number"),
        (LEAST + "threads = 0", "'threads': must be a whole number of at least 1 and of at most 64"),
        (LEAST + "data_class = 'a b'", "'data_class': "),
        (LEAST + "[api]\nport = 65536", "'api.port': "),
        (LEAST + "[outbox]\nmax_age_s = nan", "'outbox.max_age_s': "),
        (LEAST + "[outbox]\nmax_age_s = 999999999", "'outbox.max_age_s': "),
        (LEAST + "api = 1", "'api': "),
        (LEAST + "[[api]]\nport = 1", "'api': "),
        (LEAST + "log_level = 'chatty'", "'log_level': "),
        ("bundle = ", "not TOML: "),
        ("\udcff", "not TOML: "),
        ("x = " + "[" * 5000, "not TOML: "),
    ],
)
def test_an_impossible_value_is_one_line_with_its_key(tmp_path, text, line):
    file = tmp_path / "agent.toml"
    file.write_bytes(text.encode(errors="surrogateescape"))
    assert line in refused(file)


def test_a_file_that_is_not_there_or_is_a_folder_is_one_line(tmp_path):
    assert "`skerry agent init` writes one" in refused(tmp_path / "nothing.toml", code=ExitCode.MISSING)
    assert str(tmp_path) in refused(tmp_path)


def test_paths_are_relative_to_the_file_and_those_of_the_environment_to_the_working_directory(write, tmp_path):
    file = write(LEAST + 'state = "s"\npolicy = "/etc/p.toml"\n[api]\ntoken_file = "t"\n[folder]\npath = "in"\n')
    config = load_config(file, {})
    assert config.bundle == str(tmp_path / "b")
    assert config.state == str(tmp_path / "s")
    assert config.policy == "/etc/p.toml"
    assert config.api.token_file == str(tmp_path / "t")
    assert config.folder.path == str(tmp_path / "in")


def test_the_environment_beats_the_file(write):
    file = write(LEAST + "threads = 2\n[api]\nport = 1\nmax_batch = 3\n")
    variables = {f"{PREFIX}API__PORT": "8", f"{PREFIX}STATE": "here", f"{PREFIX}API__NAMES": '["a"]'}
    config = load_config(file, variables)
    assert (config.api.port, config.api.max_batch, config.api.names) == (8, 3, ("a",))
    assert (str(config.state), config.threads) == ("here", 2)


def test_a_misspelt_variable_is_an_error(write):
    line = refused(write(LEAST), {f"{PREFIX}API__PROT": "1"})
    assert line.endswith(f"unknown variable {PREFIX}API__PROT, did you mean {PREFIX}API__PORT?")


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "edge.local"])
def test_an_address_that_others_reach_needs_tls_and_a_token(write, host):
    assert "tls_cert, tls_key, token_file" in refused(write(f'{LEAST}[api]\nhost = "{host}"'))


def test_the_template_explains_every_key_and_its_default():
    text = resources.files("edge_agent").joinpath("agent.toml").read_text(encoding="utf-8")
    keys = (line.removeprefix("# ") for line in text.splitlines() if re.match(r"(# )?[a-z_]+ += |\[", line))
    shown = tomllib.loads("\n".join(keys))
    flat = {f"{k}.{i}": v for k, table in shown.items() if isinstance(table, dict) for i, v in table.items()}
    flat |= {k: v for k, v in shown.items() if not isinstance(v, dict) or not v}
    assert set(flat) == set(list_known_keys(AgentConfig))
    defaults: dict[str, Any] = msgspec.to_builtins(AgentConfig(bundle="b"))
    changed = {"state", "bundle", "policy", "energy.link_message_j", "energy.link_byte_uj"}  # the last two: examples
    for key, value in flat.items():
        table, _, inner = key.rpartition(".")
        if key not in changed:
            default = defaults[table][inner] if table else defaults[key]
            assert value == (list(default) if isinstance(default, tuple) else default), key


def test_the_template_is_itself_a_sound_file(tmp_path):
    text = resources.files("edge_agent").joinpath("agent.toml").read_text(encoding="utf-8")
    (tmp_path / "agent.toml").write_text(text)
    assert load_config(tmp_path / "agent.toml", {}).state == str(tmp_path / "device")


def test_the_limits_reach_the_loop_and_their_defaults_are_its_own(write):
    config = load_config(write(LEAST + "[outbox]\nmax_rows = 5\n[link]\nreconnect_cap_s = 7\n"), {})
    made = config.agent_settings()
    assert (made.outbox.max_rows, made.reconnect_cap_s) == (5, 7)
    plain = load_config(write(LEAST), {}).agent_settings()
    assert plain == AgentSettings(state_dir=plain.state_dir, outbox=OutboxLimits())


_toml = st.recursive(
    st.integers() | st.booleans() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=count_examples(60))
@given(st.dictionaries(st.sampled_from([*AgentConfig.__struct_encode_fields__, "x"]), _toml))
def test_any_values_give_a_configuration_or_one_line(tmp_path_factory, values):
    file = tmp_path_factory.getbasetemp() / "any.toml"
    file.write_text("\n".join(f"{key} = {_inline(value)}" for key, value in values.items()), encoding="utf-8")
    try:
        assert isinstance(load_config(file, {}), AgentConfig)
    except ExitError as stop:
        assert stop.code is ExitCode.CONFIG  # noqa: PT017 - either outcome is right
        assert "\n" not in str(stop)  # noqa: PT017


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {_inline(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_inline, value)) + "]"
    return json.dumps(value) if isinstance(value, str | bool) else repr(value)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('airgap = true\n[trace]\nendpoint = "http://127.0.0.1:4318/v1/traces"', "airgap = true lets nothing leave"),
        ('[trace]\nendpoint = "http://collector:4318/v1/traces"', "has to be https"),
        ('[trace]\nendpoint = "ftp://127.0.0.1/"', "trace.endpoint"),
    ],
)
def test_a_collector_that_spans_may_not_reach_is_refused_at_the_start(write, text, line):
    assert line in refused(write(LEAST + text))
    good = load_config(write(LEAST + '[trace]\nendpoint = "https://collector/v1/traces"'), {})
    assert good.trace.endpoint == "https://collector/v1/traces"


@pytest.mark.parametrize("stated", ["true", "false"])
def test_a_key_that_was_removed_is_refused_in_one_line_that_says_what_to_delete(write, stated: str):
    line = refused(write(LEAST + f"[link]\nsessions = {stated}\n"))
    assert line.endswith("agent.toml: 'link.sessions' was removed: delete the key; every question is signed by itself")


@pytest.mark.parametrize("stated", ["built_in", "paho"])
def test_a_choice_of_an_mqtt_client_is_refused_in_one_line_since_there_is_one(write, stated: str):
    line = refused(write(LEAST + f'[link]\nmqtt_client = "{stated}"\n'))
    assert line.endswith("agent.toml: 'link.mqtt_client' was removed: delete the key; there is one MQTT client")
    line = refused(write(LEAST), {f"{PREFIX}LINK__MQTT_CLIENT": stated})
    assert line.startswith(f"environment: {PREFIX}LINK__MQTT_CLIENT was removed: delete")


def test_a_variable_of_a_removed_key_is_refused_by_name(write):
    line = refused(write(LEAST), {f"{PREFIX}LINK__SESSIONS": "false"})
    assert line.startswith(f"environment: {PREFIX}LINK__SESSIONS was removed: delete")

"""The hub's configuration: files, environment, refusals, and what is derived from it."""

import re
import tomllib
from importlib import resources
from pathlib import Path

import msgspec
import pytest

from cloud_hub.__main__ import main
from cloud_hub.runtime.config import HubConfig, load_hub_config
from cloud_hub.runtime.engine_config import RemoteSection
from cloud_hub.runtime.language_models import LlmSection, open_language_models
from cloud_hub.system.config_base import check_environment, list_known_keys
from models.runtime.runner import echo_manifest
from policies.serving.computing import Precision
from tests import ROOT
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.logging import JsonLog


def loaded(tmp_path: Path, text: str) -> HubConfig:
    (tmp_path / "hub.toml").write_text(text)
    return load_hub_config(tmp_path / "hub.toml")


def refused(tmp_path: Path, text: str) -> str:
    with pytest.raises(ExitError) as stop:
        loaded(tmp_path, text)
    assert stop.value.code == ExitCode.CONFIG
    assert "\n" not in str(stop.value)
    return str(stop.value)


def test_paths_are_relative_to_the_file(tmp_path):
    config = loaded(tmp_path, 'state = "hub"\nmodels = ["digits", "/abs/other"]\n[hub]\nleave_file = "leave"\n')
    assert config.hub.leave_file == str(tmp_path / "leave")
    assert config.state_dir().root == tmp_path / "hub"
    assert config.models == (tmp_path / "digits", Path("/abs/other"))
    assert config.hub_settings().database_url == f"sqlite:///{tmp_path}/hub/hub.db"


def test_the_template_explains_every_key_and_its_default():
    text = resources.files("cloud_hub").joinpath("hub.toml").read_text(encoding="utf-8")
    keys = (line.removeprefix("# ") for line in text.splitlines() if re.match(r"(# )?[a-z_]+ += |\[", line))
    shown = tomllib.loads("\n".join(keys))
    flat = {f"{k}.{i}": v for k, table in shown.items() if isinstance(table, dict) for i, v in table.items()}
    flat |= {k: v for k, v in shown.items() if not isinstance(v, dict)}
    assert {*flat, "llm", "remote"} == set(list_known_keys(HubConfig))
    defaults = HubConfig().model_dump(mode="json")
    examples = {"state", "models_folder", "enrol.hardware_file", "trace.file"}  # no default that TOML could say
    for key, value in flat.items():
        table, _, inner = key.rpartition(".")
        if key not in examples:
            assert value == (defaults[table][inner] if table else defaults[key]), key


def test_the_template_is_itself_a_sound_file(tmp_path):
    text = resources.files("cloud_hub").joinpath("hub.toml").read_text(encoding="utf-8")
    assert loaded(tmp_path, text).state_dir().root == tmp_path / "hub"
    every = "\n".join(re.sub(r"^# (?=[a-z_]+ = )", "", line) for line in text.splitlines())
    config = loaded(tmp_path, every)
    assert config.enrol.hardware_file == tmp_path / "serials.txt"
    assert config.hub.leave_file == ""


@pytest.mark.parametrize(
    ("text", "near"),
    [
        ("modles = []", "models"),
        ("polices = []", "policies"),
        ("[api]\nprot = 1", "port"),
        ("[broker]\ndevice = 1", "devices"),
        ("[hubb]\n", "hub"),
    ],
)
def test_unknown_key_names_the_nearest_one(tmp_path, text, near):
    assert f"did you mean {near}?" in refused(tmp_path, text)


@pytest.mark.parametrize(
    "text",
    [
        "[api]\nport = 70000",
        "[api]\nport = 'http'",
        "[hub]\nmax_queued = 0",
        "[hub]\ndevice_rate_per_s = nan",
        "[hub]\nname = 'Hub 1'",
        "state = 3",
        "models = 'digits'",
        "api = 3",
        "not toml",
        "[api]\nport = 1\n[api]\nport = 2",
    ],
)
def test_impossible_value_is_one_line(tmp_path, text):
    refused(tmp_path, text)


def test_file_that_is_not_there_says_who_writes_it(tmp_path):
    with pytest.raises(ExitError, match="skerry hub init"):
        load_hub_config(tmp_path / "none.toml")


def test_file_that_is_no_text_is_refused(tmp_path):
    (tmp_path / "hub.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ExitError):
        load_hub_config(tmp_path / "hub.toml")


def test_an_address_that_is_not_local_needs_tls(tmp_path):
    assert "tls_cert" in refused(tmp_path, '[api]\nhost = "10.0.0.7"')
    assert loaded(tmp_path, '[api]\nhost = "10.0.0.7"\ntls = true').server_access().tls


def test_a_broker_on_every_address_needs_a_name_for_devices(tmp_path):
    assert "broker.address" in refused(tmp_path, '[broker]\nhost = "0.0.0.0"')
    config = loaded(tmp_path, '[broker]\nhost = "0.0.0.0"\naddress = "hub.example"')
    assert config.broker_host() == "hub.example"
    assert "hub.example" in config.server_names()


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("", "http://127.0.0.1:9"),
        ('[api]\nurl = "https://hub.example/"', "https://hub.example"),
        ('[api]\nhost = "0.0.0.0"\ntls = true\nnames = ["hub.example"]', "https://hub.example:9"),
        ('[api]\nhost = "::1"', "http://[::1]:9"),
    ],
)
def test_invites_carry_an_address_that_devices_can_reach(tmp_path, text, url):
    assert loaded(tmp_path, text).public_url(9) == url


def test_without_a_name_no_invite_is_made(tmp_path):
    config = loaded(tmp_path, '[api]\nhost = "0.0.0.0"\ntls = true')
    with pytest.raises(ExitError, match=r"api\.url"):
        config.public_url(9)


@pytest.mark.parametrize("name", ["SKERRY_HUB_PROT", "SKERRY_HUB_API__PROT", "skerry_hub_x"])
def test_misspelt_variable_is_refused(name):
    with pytest.raises(ExitError, match="did you mean SKERRY_HUB_"):
        check_environment(HubConfig, {name: "1"})


def test_other_peoples_variables_are_not_ours():
    check_environment(HubConfig, {"SKERRY_AGENT_X": "1", "PATH": "", "SKERRY_HUB_API__PORT": "1"})


@pytest.mark.parametrize(
    ("variables", "code", "says"),
    [
        ({"SKERRY_HUB_API__PORT": "99999"}, ExitCode.CONFIG, "api.port"),
        ({"SKERRY_HUB_API": "{broken"}, ExitCode.CONFIG, "environment"),
        ({"SKERRY_HUB_API__PROT": "1"}, ExitCode.CONFIG, "SKERRY_HUB_API__PORT"),
        ({"SKERRY_HUB_BROKER__PROGRAM": "/nowhere/mosquitto"}, ExitCode.BROKER, "/nowhere/mosquitto"),
    ],
)
def test_environment_wins_over_the_file_and_errors_are_one_line_with_their_code(
    tmp_path, monkeypatch, capsys, variables, code, says
):
    (tmp_path / "hub.toml").write_text('state = "hub"\n[api]\nport = 0\n[broker]\nport = 0\n')
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert main(["--config", str(tmp_path / "hub.toml"), "--check"]) == code
    complained = capsys.readouterr().err
    assert says in complained
    assert complained.count("\n") == 1


def test_named_policies_are_the_only_ones_served_and_are_judged_again(tmp_path):
    (tmp_path / "p.toml").write_text((ROOT / "policies/templates/demo.toml").read_text())
    settings = HubConfig(policies=(str(tmp_path / "p.toml"),)).hub_settings()
    assert settings.policies >= {document.hash for document in settings.documents}
    assert len(settings.documents) == 1


@pytest.mark.parametrize("text", ["schema = 2", "\udcff", None])
def test_an_unusable_policy_stops_the_hub_with_one_line(tmp_path, text):
    if text is not None:
        (tmp_path / "p.toml").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ExitError) as stop:
        HubConfig(policies=(str(tmp_path / "p.toml"),)).hub_settings()
    assert stop.value.code is (ExitCode.MISSING if text is None else ExitCode.POLICY)


def language_table() -> str:
    """The [[llm]] table of the template, without the marks before its lines."""
    text = resources.files("cloud_hub").joinpath("hub.toml").read_text(encoding="utf-8")
    return "\n".join(line[3:] for line in text.splitlines() if line.startswith("#  "))


def test_the_template_explains_every_key_of_a_language_model_and_its_default(tmp_path):
    (shown,) = tomllib.loads(language_table())["llm"]
    assert set(shown) == set(LlmSection.model_fields)
    defaults = LlmSection(name="chat", urls=("http://10.0.0.7:8000",)).model_dump(mode="json")
    assert shown == defaults
    assert loaded(tmp_path, language_table()).llm[0].name == "chat"


def remote_table() -> str:
    """The [[remote]] table of the template, without the marks before its lines."""
    text = resources.files("cloud_hub").joinpath("hub.toml").read_text(encoding="utf-8")
    return "\n".join(line[3:] for line in text.splitlines() if line.startswith("#> "))


def test_the_template_explains_every_key_of_a_remote_server_and_its_default(tmp_path):
    (shown,) = tomllib.loads(remote_table())["remote"]
    given = {key: shown[key] for key in ("model", "url", "tail", "whole")}
    assert shown == RemoteSection(**given).model_dump(mode="json")
    table = remote_table().replace('token_file = ""', 'token_file = "remote.token"')
    server = (
        loaded(tmp_path, table)
        .engine_options()
        .remote_server(msgspec.structs.replace(echo_manifest().ref, name="digits", version=7))
    )
    assert server is not None
    assert (server.tail, server.token_file) == ("digits-7-tail", str(tmp_path / "remote.token"))
    assert (
        loaded(tmp_path, table)
        .engine_options()
        .remote_server(msgspec.structs.replace(echo_manifest().ref, name="digits", version=8))
        is None
    )


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ('model = "digits"\nurl = "http://a"\ntail = "t"', "whole"),
        ('model = "digits"\nurl = "a:8000"\ntail = "t"\nwhole = "w"', "url"),
        ('model = "digits"\nurl = "http://a"\ntail = "t/x"\nwhole = "w"', "tail"),
        ('model = "digits"\nurl = "http://a"\ntail = "t"\nwhole = "w"\ntoken = "x"', "did you mean token_file?"),
        ("\n[[remote]]\n".join(['model = "d"\nurl = "http://a"\ntail = "t"\nwhole = "w"'] * 2), "two"),
    ],
)
def test_a_wrong_remote_server_is_one_line_that_names_what_is_wrong(tmp_path, table, says):
    assert says in refused(tmp_path, f"[[remote]]\n{table}")


def test_a_language_model_has_the_hubs_region_unless_it_or_a_server_says_another(tmp_path):
    table = (
        '[[llm]]\nname = "chat"\nkey_file = "chat.key"\nurls = ["http://a:1/v1", { url = "http://b", region = "us" }]'
    )
    section = loaded(tmp_path, table).llm[0]
    found = section.settings("eu")
    assert (found.region, section.key_file) == ("eu", str(tmp_path / "chat.key"))
    assert [(each.base, each.region) for each in found.urls] == [("http://a:1", ""), ("http://b", "us")]


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ('name = "chat"', "urls"),
        ('name = "chat"\nurls = ["http://a"]\nstart = ["x", "{port}"]', "either"),
        ('name = "chat"\nstart = ["vllm", "serve"]', "{port}"),
        ('urls = ["http://a"]', "name"),
        ('name = "chat"\nurls = ["http://a", "http://a/v1/"]', "twice"),
        ('name = "chat"\nurls = ["ftp://a"]', "urls"),
        ('name = "chat"\nurls = ["http://user:secret@a"]', "urls"),
        ('name = "chat"\nurls = ["http://a"]\nprices = 1', "did you mean price?"),
        ('name = "chat"\nurls = ["http://a"]\nprice = { output = -1.0 }', "price"),
        ('name = "chat"\nurls = ["http://a"]\n[[llm]]\nname = "chat"\nurls = ["http://b"]', "two"),
    ],
)
def test_a_wrong_language_model_is_one_line_that_names_what_is_wrong(tmp_path, table, says):
    assert says in refused(tmp_path, f"[[llm]]\n{table}")


def test_the_key_of_an_engine_is_one_word_that_nobody_else_can_read(tmp_path):
    sections = loaded(tmp_path, '[[llm]]\nname = "chat"\nurls = ["http://a"]\nkey_file = "chat.key"').llm
    key = tmp_path / "chat.key"
    for text, mode in (("", 0o600), ("two words", 0o600), ("key", 0o644)):
        key.write_text(text)
        key.chmod(mode)
        with pytest.raises(ExitError) as stop:
            open_language_models(sections, "eu", [], JsonLog())
        assert stop.value.code == ExitCode.CREDENTIALS
    key.chmod(0o600)
    assert [model.settings.region for model in open_language_models(sections, "eu", [], JsonLog()).models] == ["eu"]


def test_the_first_hub_of_a_region_may_be_numbered_like_the_others(tmp_path):
    assert loaded(tmp_path, '[hub]\nmember = "hub-1"\n').hub.member == "hub"
    assert loaded(tmp_path, '[hub]\nmember = "hub-2"\n').hub.member == "hub-2"
    for name in ("hub-0", "hub-17", "hub-01"):
        assert "hub.member" in refused(tmp_path, f'[hub]\nmember = "{name}"\n')


@pytest.mark.parametrize("stated", ['classes = ["camera"]', "classes = []"])
def test_a_section_that_was_removed_is_refused_in_one_line_that_says_what_to_delete(tmp_path, stated):
    line = refused(tmp_path, f"[sessions]\n{stated}\n")
    assert line.endswith("hub.toml: 'sessions' was removed: delete the section; every question is signed by its device")


@pytest.mark.parametrize("stated", ["built_in", "paho"])
def test_a_choice_of_an_mqtt_client_is_refused_in_one_line_since_there_is_one(tmp_path, monkeypatch, stated):
    line = refused(tmp_path, f'[broker]\nmqtt_client = "{stated}"\n')
    assert line.endswith("hub.toml: 'broker.mqtt_client' was removed: delete the key; there is one MQTT client")
    monkeypatch.setenv("SKERRY_HUB_BROKER__MQTT_CLIENT", stated)
    assert "environment: SKERRY_HUB_BROKER__MQTT_CLIENT was removed: delete" in refused(tmp_path, "")


def test_a_removed_section_in_which_nothing_is_stated_as_init_wrote_it_stops_no_hub(tmp_path):
    assert loaded(tmp_path, "[sessions]\n# classes = []\n").hub.name == "hub-1"


@pytest.mark.parametrize("name", ["SKERRY_HUB_SESSIONS", "SKERRY_HUB_SESSIONS__CLASSES"])
def test_a_variable_of_a_removed_section_is_refused_by_name(tmp_path, monkeypatch, name):
    monkeypatch.setenv(name, '["camera"]')
    assert f"environment: {name} was removed: delete" in refused(tmp_path, "")


def test_hubs_of_one_region_choose_one_precision_for_each_version_whatever_each_would_measure(tmp_path):
    engine = """
    [engine]
    precision = "auto"
    models = { "digits" = { precision = "bfloat16" }, "digits@7" = { precision = "auto" } }
    """
    store = '[store]\nurl = "postgresql+psycopg://hub@db/skerry"\n'
    one, other, alone = (loaded(tmp_path, each).engine_options() for each in (engine + store, engine + store, engine))
    refs = [msgspec.structs.replace(echo_manifest().ref, name=n, version=v) for n, v in (("digits", 6), ("digits", 7))]
    refs.append(msgspec.structs.replace(refs[0], name="other"))
    chosen = [one.compute_options(ref).precision for ref in refs]
    assert chosen == [other.compute_options(ref).precision for ref in refs]
    assert chosen == [Precision.BFLOAT16, Precision.FLOAT32, Precision.FLOAT32]
    assert alone.compute_options(refs[2]).precision is Precision.AUTO

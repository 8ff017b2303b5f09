"""`skerry policy` on the command line: its output and its exit codes."""

import json
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

from edge_agent.cli import policy_files
from policies.language.document import parse_policy
from tests.in_process import skerry
from tests.policies.doubles.given import TEXT, with_
from tests.test_skerry import refused
from wire.process.exit_codes import ExitCode, ExitError

UNSURE = '{"confidence": 0.4, "data_class": "open"}'


@pytest.fixture
def document(tmp_path):
    path = tmp_path / "policy.toml"
    path.write_text(TEXT, encoding="utf-8")
    return path


def template(folder: Path, name: str, *edits: tuple[str, str]) -> Path:
    path = folder / f"{name}.toml"
    path.write_text(with_(policy_files.render_template(name), *edits), encoding="utf-8")
    return path


def ending_in(days: int) -> str:
    """The demo's document, issued long ago, that ends so many days from now."""
    ends = datetime.now(UTC).date() + timedelta(days=days)
    lines = [line for line in TEXT.splitlines() if not line.startswith(("issued", "expires"))]
    at = lines.index("[escalation]")
    return "\n".join([*lines[:at], "issued = 2020-01-01", f"expires = {ends}", *lines[at:]])


# check


def test_check_says_what_a_document_lets_happen(document):
    done = skerry("policy", "check", str(document))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("sound")
    assert "features up to P2" in done.stdout
    assert "\x1b" not in done.stdout, "no colour where nobody looks"


def test_check_as_json_says_how_often_noise_may_be_released(tmp_path):
    told = json.loads(skerry("policy", "check", str(template(tmp_path, "clinic")), "--json").stdout)
    assert told["sound"] is True
    assert len(told["hash"]) == 32
    assert told["releases"] == {"patient": 58}


def test_check_names_the_key_and_ends_with_11(document):
    document.write_text(with_(TEXT, ("threshold", "treshold")), encoding="utf-8")
    line = refused(skerry("policy", "check", str(document)), ExitCode.POLICY)
    assert "escalation: unknown key 'treshold'; did you mean 'threshold'?" in line
    done = skerry("policy", "check", str(document), "--json")
    assert done.returncode == ExitCode.POLICY
    assert json.loads(done.stdout)["sound"] is False


def test_check_of_an_expired_document_ends_with_11(document):
    document.write_text(ending_in(-1), encoding="utf-8")
    assert "expired on" in refused(skerry("policy", "check", str(document)), ExitCode.POLICY)
    told = skerry("policy", "explain", str(document), "--context", UNSURE).stdout
    assert "denied_policy_expired" in told


def test_a_policy_that_expires_within_14_days_is_sound_and_warned_of(document):
    document.write_text(ending_in(14), encoding="utf-8")
    done = skerry("policy", "check", str(document))
    assert done.returncode == 0
    assert "warning" in done.stdout
    document.write_text(ending_in(16), encoding="utf-8")
    assert "warning" not in skerry("policy", "check", str(document)).stdout


def test_a_property_that_holds_is_proven(document):
    done = skerry("policy", "check", str(document), "--no-field-above", "P2", "--region", "local")
    assert done.returncode == 0, done.stderr
    assert "proven" in done.stdout


def test_a_property_that_does_not_hold_ends_with_42_and_a_counter_example(document):
    done = skerry("policy", "check", str(document), "--no-field-above", "P1")
    assert done.returncode == ExitCode.UNPROVEN
    assert "features" in done.stdout
    told = json.loads(skerry("policy", "check", str(document), "--no-field-above", "P1", "--json").stdout)
    assert told["proof"]["holds"] is False
    assert told["proof"]["counter_example"]["level"] == "P2"


def test_a_label_that_is_none_is_a_wrong_command_line(document):
    assert "P0, P1" in refused(skerry("policy", "check", str(document), "--no-field-above", "P7"), ExitCode.USAGE)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"x" * (1024 * 1024 + 1)], ids=["not text", "too long"])
def test_a_file_that_is_no_text_is_refused(document, content):
    document.write_bytes(content)
    refused(skerry("policy", "check", str(document)), ExitCode.POLICY)


def test_a_file_that_is_not_there_is_refused_and_a_template_offered(tmp_path):
    assert "no such file" in refused(skerry("policy", "check", str(tmp_path / "none")), ExitCode.MISSING)
    refused(skerry("policy", "check", str(tmp_path)), ExitCode.POLICY)
    assert "skerry policy new clinic" in refused(skerry("policy", "check", "clinic.toml"), ExitCode.MISSING)


def test_two_documents_of_one_layer_do_not_go_together(document, tmp_path):
    other = tmp_path / "other.toml"
    other.write_text(with_(TEXT, ('name = "demo"', 'name = "other"')), encoding="utf-8")
    line = refused(skerry("policy", "check", str(document), str(other)), ExitCode.POLICY)
    assert "layer" in line


# explain


def test_explain_takes_a_sample_from_the_command_line_or_a_file(document, tmp_path):
    as_json, as_toml = tmp_path / "sample.json", tmp_path / "sample.toml"
    as_json.write_text(UNSURE, encoding="utf-8")
    as_toml.write_text('confidence = 0.4\ndata_class = "open"\n', encoding="utf-8")
    told = [skerry("policy", "explain", str(document), "--context", str(e)).stdout for e in (UNSURE, as_json, as_toml)]
    assert "The hub is asked" in told[0]
    assert told[0] == told[1] == told[2]


def test_explain_as_json(document):
    told = json.loads(skerry("policy", "explain", str(document), "--context", UNSURE, "--json").stdout)
    assert told["leaves"] is True
    assert told["why"] == "unsure"
    assert {"key": "threshold", "said": [["site demo@1", "0.9"]], "holds": "0.9"} in told["keys"]


def test_explain_shows_layer_by_layer_who_narrowed_what(tmp_path):
    layers = [str(template(tmp_path, name)) for name in ("clinic", "airgap")]
    sample = '{"confidence": 0.4, "data_class": "vitals", "region": "eu-de", "time": "wed 10:00"}'
    done = skerry("policy", "explain", *layers, "--context", sample)
    assert done.returncode == 0, done.stderr
    assert "local_only" in done.stdout
    assert "tenant clinic@1: answer_now" in done.stdout
    assert done.stdout == skerry("policy", "explain", *reversed(layers), "--context", sample).stdout


def test_explain_without_a_sample_shows_the_ceiling_and_the_rules(tmp_path):
    done = skerry("policy", "explain", str(template(tmp_path, "clinic")))
    assert "hubs         clinic-hub  (tenant clinic@1)" in done.stdout
    assert "rule away unless region eu-de: nothing leaves" in done.stdout


@pytest.mark.parametrize("sample", ['{"confidence": 0.4', '{"confidense": 1}', '{"a":' * 5000], ids=len)
def test_explain_with_a_wrong_sample_ends_with_13(document, sample):
    refused(skerry("policy", "explain", str(document), "--context", sample), ExitCode.SAMPLE)


# test


def test_probes_beside_a_policy_are_found(tmp_path):
    path = template(tmp_path, "telecom-probe")
    refused(skerry("policy", "test", str(path)), ExitCode.MISSING)
    (tmp_path / "telecom-probe.probes.toml").write_text(policy_files.read_shipped("telecom-probe", ".probes.toml"))
    done = skerry("policy", "test", str(path))
    assert done.returncode == 0, done.stdout
    assert "13 of 13 cases" in done.stdout


def test_a_probe_that_comes_out_otherwise_ends_with_43_and_shows_its_decisions(tmp_path):
    path = template(tmp_path, "clinic", ("notes = false", "notes = true"))
    cases = tmp_path / "cases.probes.toml"
    cases.write_text(policy_files.read_shipped("clinic", ".probes.toml"), encoding="utf-8")
    done = skerry("policy", "test", str(path), str(cases))
    assert done.returncode == ExitCode.PROBE
    assert "free text never leaves: leaves should be false, is true" in done.stdout
    assert "15 of 16 cases" in done.stdout
    told = json.loads(skerry("policy", "test", str(path), str(cases), "--json").stdout)
    assert (told["cases"], told["failed"]) == (16, 1)


def test_probes_alone_are_a_wrong_command_line(tmp_path):
    (tmp_path / "x.probes.toml").write_text("", encoding="utf-8")
    assert "name the policy too" in refused(skerry("policy", "test", str(tmp_path / "x.probes.toml")), ExitCode.USAGE)


# diff


def test_a_diff_says_what_becomes_allowed_and_what_forbidden(document, tmp_path):
    wider = tmp_path / "wider.toml"
    edits = (
        ("version = 1", "version = 2"),
        ("private = false", "private = true"),
        ("threshold = 0.9", "threshold = 0.5"),
    )
    wider.write_text(with_(TEXT, *edits), encoding="utf-8")
    done = skerry("policy", "diff", str(document), str(wider))
    assert done.returncode == 0, done.stderr
    assert "wider" in done.stdout
    assert "narrower" in done.stdout
    assert skerry("policy", "diff", str(document), str(wider), "--only-narrower").returncode == ExitCode.WIDER
    back = json.loads(skerry("policy", "diff", str(document), str(document), "--json").stdout)
    assert back == {"changes": []}
    assert skerry("policy", "diff", str(document), str(document), "--only-narrower").returncode == 0


# show, new


def test_every_template_is_listed_and_shown(tmp_path):
    listed = skerry("policy", "show").stdout
    for name in policy_files.TEMPLATES:
        assert f"\n{name} " in f"\n{listed}"
        assert policy_files.render_template(name).startswith("#")
    assert skerry("policy", "show", "clinic").stdout == policy_files.render_template("clinic")
    assert "there are clinic, factory" in refused(skerry("policy", "show", "clinik"), ExitCode.NOT_FOUND)


def test_a_new_policy_is_of_today_and_touches_nothing_that_is_there(tmp_path):
    path = tmp_path / "mine.toml"
    done = skerry("policy", "new", "factory", str(path))
    assert done.returncode == 0, done.stderr
    assert f"issued = {datetime.now(UTC).date()}" in path.read_text()
    assert (tmp_path / "mine.probes.toml").exists()
    assert skerry("policy", "test", str(path)).returncode == 0
    assert "not touched" in refused(skerry("policy", "new", "factory", str(path)), ExitCode.CONFIG)


@pytest.mark.parametrize("name", policy_files.PROBED)
def test_a_template_is_dated_and_otherwise_as_it_is_shipped(name):
    day = date(2031, 5, 1)
    dated, shipped = policy_files.render_template(name, day).splitlines(), policy_files.read_shipped(name).splitlines()
    changed = [line.split(" ")[0] for line, old in zip(dated, shipped, strict=True) if line != old]
    assert changed == (["issued"] if name == "airgap" else ["issued", "expires"])
    assert "2031-07-30" in "".join(dated) or name == "airgap"


def test_a_name_that_is_no_template_reads_no_file():
    with pytest.raises(ExitError):
        policy_files.read_shipped("../document")


CALIBRATED = """
version = 7  # of mine
name = "a"
[escalation]
mode = "answer_now"
threshold = 0.9  # from which it stands
[[rule]]
name = "night"
threshold = 0.7
"""


def test_a_calibrated_threshold_is_written_into_the_base_alone_as_the_next_version():
    written = policy_files.set_threshold(CALIBRATED, 0.52096)
    assert written == CALIBRATED.replace("0.9 ", "0.521 ").replace("version = 7", "version = 8")
    assert policy_files.set_threshold(written, 0.52096) == written  # it has it already: no further version
    for text in (CALIBRATED.replace("threshold = 0.9", ""), CALIBRATED.replace("version", "versions")):
        with pytest.raises(ValueError, match="states no version, or no threshold under"):
            policy_files.set_threshold(text, 0.5)


@pytest.mark.parametrize("name", policy_files.TEMPLATES)
def test_every_template_takes_a_calibrated_threshold(name):
    text = policy_files.render_template(name)
    if "threshold" not in text:
        return
    made = parse_policy(policy_files.set_threshold(text, 0.4321)).compile()
    assert made.base.threshold == 0.4321
    assert made.version == parse_policy(text).compile().version + 1

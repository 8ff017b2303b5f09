"""`skerry models measure`: a policy's own chain is attacked, and the result is written into the bundle."""

import json
from functools import cache
from pathlib import Path

import msgspec
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import skerry
from models.bundle.bundle import open_bundle
from models.bundle.manifest import HUB_FILE, HUB_GRAPH_FILE
from models.graph.hub_model import TAIL, WHOLE, encode_graphs, export_graph
from models.runtime.chain import FeatureChain, digest_chain
from models.runtime.runner import echo_manifest
from policies.language.document import parse_policy
from tests.examples import further
from tests.models.bundles import write_bundle
from tests.models.conftest import contents

POLICY = """
schema = 2
name = "p"
version = 1
issued = 2026-01-01
expires = 2099-12-31
escalation = { mode = "wait", threshold = 0.8, audit_share = 0.0, budget_s = 1.5 }
locality = { hubs = ["hub-1"], regions = ["eu"] }
budget = { bytes_per_day = 1_000_000 }
retention = { purpose = "test" }

[egress]
ceiling = "P2"
field = [{ name = "features", level = "P2", transforms = [{ kind = "quantise", step = 5 }] }]
"""
SAMPLES = """
import numpy as np
def samples():
    rng = np.random.default_rng(4)
    x = rng.random((600, 10), np.float32)
    return x, x.argmax(1), [str(n) for n in range(10)], {"odd": (x[:, 0] > 0.5).astype(np.int64)}
"""


class Scaled(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(scale))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


@cache
def hub_files() -> tuple[bytes, bytes]:
    example = (torch.zeros(2, 10),)
    return encode_graphs({TAIL: export_graph(Scaled(1 / 15), example), WHOLE: export_graph(Scaled(1.0), example)})


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A bundle that copies its input into its codes, samples, and a policy that rounds the codes to multiples of 5."""
    graph, weights = hub_files()
    files = contents() | {HUB_GRAPH_FILE: graph, HUB_FILE: weights}
    write_bundle(tmp_path / "b", msgspec.structs.replace(echo_manifest(), leakage=()), files)
    (tmp_path / "policy.toml").write_text(POLICY)
    (tmp_path / f"{module(tmp_path)}.py").write_text(SAMPLES)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def module(folder: Path) -> str:
    """A name of its own: a module is imported once in a process."""
    return "given_" + "".join(each for each in folder.name if each.isalnum()).lower()


def measure(*flags: str) -> tuple[int, str]:
    said = CliRunner().invoke(
        skerry.app, ["models", "measure", "b", "--data", f"{module(Path.cwd())}:samples", "--quick", *flags]
    )
    if said.exception is not None and not isinstance(said.exception, SystemExit):
        raise said.exception
    return said.exit_code, said.stdout


def test_the_chain_of_the_policy_gets_rows_and_another_digest(folder):
    before = open_bundle(folder / "b")
    code, text = measure("--policy", "policy.toml", "--json")
    told, after = json.loads(text), open_bundle(folder / "b")
    assert code == 0
    assert told["digest"] == after.digest != before.digest == told["digest_before"]
    rows = after.manifest.leakage
    assert {row.kind.value for row in rows} == {"reconstruction", "attribute", "membership"}
    assert {row.chain for row in rows} == {told["chains"][0]["chain"]}
    main = next(row for row in rows if row.metric == "explained_variance")
    assert 0.8 < main.score <= main.upper95 < 0.99  # steps of a third of the range hide a little


@pytest.mark.further
def test_top_k_and_noise_of_a_policy_are_attacked_as_a_chain_of_their_own(folder):
    changed = POLICY.replace(
        '{ kind = "quantise", step = 5 }', '{ kind = "top_k", k = 3 }, { kind = "noise", sigma = 3 }'
    )
    (folder / "policy.toml").write_text(changed)
    code, text = measure("--policy", "policy.toml", "--json")
    manifest = open_bundle(folder / "b").manifest
    compiled = parse_policy(changed).compile().base.fields["features"].transforms
    chain = digest_chain(manifest.cut, manifest.codec, [FeatureChain(manifest.features[0], compiled)])
    assert code == 0
    assert {row.chain for row in manifest.leakage} == {chain}  # what a device of this policy looks its permission up by
    main = next(row for row in manifest.leakage if row.metric == "explained_variance")
    assert main.upper95 < 0.7  # bare codes give 0.99
    told = json.loads(text)["chains"][0]
    assert any(line.startswith("reconstruction of the sample") for line in told["summary"])
    assert told["cost"]["networks"] >= 1
    assert not (folder / "b.attacks").exists()


RULE = """
[[rule]]
name = "low"
when = { battery_below = 0.5 }
transforms = { features = [{ kind = "clip", low = 0, high = 1 }] }
"""


@pytest.mark.further
def test_each_chain_that_the_rules_can_make_is_measured(folder):
    (folder / "policy.toml").write_text(POLICY + RULE)
    code, text = measure("--policy", "policy.toml", "--json")
    told = json.loads(text)
    assert code == 0
    assert len({each["chain"] for each in told["chains"]}) == 2
    assert {row.chain for row in open_bundle(folder / "b").manifest.leakage} == {c["chain"] for c in told["chains"]}


@pytest.mark.further
def test_a_dry_run_changes_nothing(folder):
    before = open_bundle(folder / "b")
    code, text = measure("--json", "--dry-run")
    assert code == 0
    assert json.loads(text)["chains"][0]["rows"]
    assert json.loads(text)["digest"] == open_bundle(folder / "b").digest == before.digest


@pytest.mark.further
def test_a_limit_that_the_finding_breaks_ends_with_40(folder):
    (folder / "policy.toml").write_text(POLICY + "[privacy]\nmax_leakage = 0.5\n")
    code, text = measure("--policy", "policy.toml")
    assert code == 40
    assert "denied_leakage" in text


@pytest.mark.further
def test_measuring_twice_replaces_the_rows(folder):
    measure()
    count = len(open_bundle(folder / "b").manifest.leakage)
    measure()
    assert len(open_bundle(folder / "b").manifest.leakage) == count


@pytest.mark.parametrize(
    ("edit", "code"),
    [(("features", "other"), 11), (("schema = 2", "schema = 9"), 11), further(("step = 5", "step = 400"), None)],
)
def test_a_policy_that_lets_nothing_leave_is_said_in_one_line(folder, edit, code):
    (folder / "policy.toml").write_text(POLICY.replace(*edit))
    flags = ["models", "measure", "b", "--data", f"{module(Path.cwd())}:samples", "--quick", "--policy", "policy.toml"]
    said = CliRunner().invoke(skerry.app, flags)
    if code is None:  # every code becomes 0: it may leave, and says nothing
        assert said.exit_code == 0
        assert (
            max(row.score for row in open_bundle(folder / "b").manifest.leakage if row.kind == "reconstruction") < 0.1
        )
    else:
        assert getattr(said.exception, "code", None) == code


def test_the_manifest_stays_as_it_is_for_samples_of_another_shape(folder):
    (folder / f"{module(folder)}.py").write_text(
        SAMPLES.replace("(600, 10)", "(600, 9)").replace("range(10)", "range(9)")
    )
    said = CliRunner().invoke(
        skerry.app, ["models", "measure", "b", "--data", f"{module(Path.cwd())}:samples", "--quick"]
    )
    assert getattr(said.exception, "code", None) == 13
    assert open_bundle(folder / "b").manifest.leakage == ()

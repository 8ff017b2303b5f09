"""The chart's files agree with the code: its schema with the hub's configuration, its page with its examples."""

import importlib
import json
import re
import sys
import tomllib

import pytest
import yaml

from tests import ROOT
from tests.blocks import blocks

HELM = ROOT / "deploy" / "helm"
EXAMPLES = sorted((HELM / "skerry" / "examples").glob("*.yaml"))


def test_the_schema_of_the_values_is_that_of_the_hubs_configuration():
    sys.path.insert(0, str(HELM))
    try:
        module = importlib.import_module("values_schema")
    finally:
        sys.path.remove(str(HELM))
    wanted = module.render_schema()
    assert (HELM / "skerry" / "values.schema.json").read_text() == wanted, "python deploy/helm/values_schema.py"


def test_the_values_shown_on_the_page_are_the_examples():
    shown = {block.mark: block.text for block in blocks(ROOT / "docs" / "kubernetes.md") if block.language == "yaml"}
    assert shown == {path.stem: path.read_text() for path in EXAMPLES}


def test_the_chart_has_the_version_of_the_program():
    chart = yaml.safe_load((HELM / "skerry" / "Chart.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert chart["version"] == chart["appVersion"] == project["version"]


def test_the_schema_knows_every_value_and_no_other():
    values = yaml.safe_load((HELM / "skerry" / "values.yaml").read_text())
    schema = json.loads((HELM / "skerry" / "values.schema.json").read_text())
    assert set(values) == set(schema["properties"]) - {"global"}  # helm's own


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_says_what_it_is(path):
    assert re.match(r"# \w[^\n]+\.\n", path.read_text())

"""What a release is made of: one version everywhere, everything that a package needs at run time, no dead link."""

import importlib
import json
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from email.parser import HeaderParser
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from tests import ROOT

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
PACKAGES = ("wire", "policies", "models", "edge_agent", "cloud_hub", "simulations")
# how a page or file names an artefact or image of ours, with its version
NAMED = re.compile(
    r"skerry(?:[-_](?:agent|hub|demo|client|typescript))?[-_:@](?:v|\+?)(\d+\.\d+\.\d+)\b|tag: \"(\d[\d.]+)\""
)
WRITTEN_IN = ("README.md", "Makefile", "docs/**/*.md", "clients/*/README.md", "deploy/**/*", "examples/**/*.md")


@pytest.fixture(scope="module")
def release() -> Iterator[ModuleType]:
    sys.path.insert(0, str(ROOT / "deploy"))
    try:
        yield importlib.import_module("release")
    finally:
        sys.path.remove(str(ROOT / "deploy"))


@pytest.fixture(scope="module")
def artefacts(release: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheels by the role that their version names (`""`: all of it), and `client`, without the package for npm."""
    folder = tmp_path_factory.mktemp("artefacts")
    sources = folder / "sources"
    release.copy_sources(sources)
    whole = release.build_wheel(sources, folder)
    roles = {build.name: release.builds.make_role_wheel(whole, build) for build in release.builds.BUILDS}
    return {"": whole, **roles, "client": release.build_wheel(sources / "clients" / "python", folder)}


def list_versions() -> dict[str, str]:
    """Every file that states the version of the project, and the version there."""
    chart = yaml.safe_load((ROOT / "deploy/helm/skerry/Chart.yaml").read_text(encoding="utf-8"))
    npm = json.loads((ROOT / "clients/typescript/package.json").read_text(encoding="utf-8"))
    locked = json.loads((ROOT / "clients/typescript/package-lock.json").read_text(encoding="utf-8"))
    client = tomllib.loads((ROOT / "clients/python/pyproject.toml").read_text(encoding="utf-8"))
    found = {
        "client": client["project"]["version"],
        "chart": chart["version"],
        "application of the chart": chart["appVersion"],
        "npm": npm["version"],
        "npm lock": locked["version"],
        "npm lock's root": locked["packages"][""]["version"],
    }
    for pattern in WRITTEN_IN:
        for path in filter(Path.is_file, ROOT.glob(pattern)):
            text = path.read_text(encoding="utf-8", errors="replace")
            for number, line in enumerate(text.splitlines(), 1):
                found |= {f"{path.relative_to(ROOT)}:{number}": each[0] or each[1] for each in NAMED.findall(line)}
    return found


def test_every_place_that_states_the_version_states_the_same():
    found = list_versions()
    assert len(found) > 10, "the rule finds artefacts and images in pages and container files"
    assert found == dict.fromkeys(found, VERSION)


def test_the_changelog_has_this_version_or_is_about_to():
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[0] == "Unreleased"
    assert len(headings) == len(set(headings))


def test_links_of_a_page_become_paths_and_what_is_code_stays(release: ModuleType):
    page = (
        "See [how](docs/x.md#part), [docs/y.md](docs/y.md), [up](../../README.md), [here](#there), ![v](docs/a.png)\n"
        "and [the field](https://example.org/) `[not](a/link)`.\n```\n[nor](this)\n```\n"
    )
    assert release.descriptions.make_links_plain(page, "clients/python") == (
        "See how (clients/python/docs/x.md), `clients/python/docs/y.md`, up (README.md), here, \n"
        "and [the field](https://example.org/) `[not](a/link)`.\n```\n[nor](this)\n```\n"
    )


@pytest.mark.further
def test_every_file_that_a_package_has_in_the_repository_is_in_the_wheel_and_in_the_build_of_its_role(artefacts):
    words = ("git", "ls-files", "-co", "--exclude-standard", *PACKAGES, "skerry.py")
    listed = subprocess.run(words, check=True, capture_output=True, text=True, cwd=ROOT).stdout.split()
    tracked = {name for name in listed if (ROOT / name).exists()}

    def held(role: str) -> set[str]:
        return {name for name in zipfile.ZipFile(artefacts[role]).namelist() if ".dist-info/" not in name}

    assert held("") == held("demo") == tracked
    assert held("hub") == {name for name in tracked if not name.startswith("simulations/")}
    assert held("agent") == {name for name in tracked if not name.startswith(("simulations/", "cloud_hub/"))}


@pytest.mark.further
def test_what_an_index_shows_has_classifiers_and_no_link_to_a_file_that_it_does_not_have(release, artefacts):
    for role, wheel in artefacts.items():
        with zipfile.ZipFile(wheel) as archive:
            (name,) = [each for each in archive.namelist() if each.endswith(".dist-info/METADATA")]
            told = HeaderParser().parsestr(archive.read(name).decode())
        assert release.descriptions.find_relative_links(told.get_payload()) == [], role
        assert "Typing :: Typed" in told.get_all("Classifier", []), role
        assert len(told.get_payload()) > 500, role


@pytest.mark.further
def test_a_build_asks_for_what_it_runs_with_and_nothing_of_another_role(artefacts):
    def asked(role: str) -> set[str]:
        with zipfile.ZipFile(artefacts[role]) as archive:
            (name,) = [each for each in archive.namelist() if each.endswith(".dist-info/METADATA")]
            lines = HeaderParser().parsestr(archive.read(name).decode()).get_all("Requires-Dist", [])
        return {re.split(r"[^\w-]", line)[0].lower() for line in lines if "extra ==" not in line}

    assert asked("agent") == asked("")
    assert "torch" in asked("hub") - asked("agent")
    assert {"torch", "scikit-learn", "plotly", "httpx2"} <= asked("demo")
    assert "skerry" not in asked("demo"), "an extra of itself is taken in place"
    assert "scikit-learn" not in asked("hub")

"""Every check of both checkups has a test of its fine line, and one of each warning and problem that it can find."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT
from tests.cloud_hub.doctor import test_hub_doctor
from tests.edge_agent.doctor import test_doctor
from wire.process.findings import Severity

# What the judges of `wire.process.findings` can find; each of their limits has its own test.
JUDGED = {
    "judge_disk": (Severity.FINE,),
    "judge_certificate": (Severity.FINE,),
    "judge_clock": (Severity.FINE, Severity.WARNING),
    "judge_stop": (Severity.FINE, Severity.WARNING),
}
# Found by tests that call the check itself or plant no single fault.
ELSEWHERE = {
    ("edge_agent", "folder", Severity.PROBLEM): test_doctor.test_a_full_disk_and_a_folder_of_another_user_are_found,
    ("edge_agent", "network", Severity.FINE): test_doctor.test_an_air_gapped_device_has_no_network_to_look_at,
    ("edge_agent", "network", Severity.SKIPPED): (
        test_doctor.test_a_folder_that_only_the_configuration_names_and_that_is_not_there_leaves_the_network_unasked
    ),
    ("cloud_hub", "hub", Severity.PROBLEM): (
        test_hub_doctor.test_a_running_hub_is_asked_whether_it_is_ready_and_its_ports_are_not_tried
    ),
    ("cloud_hub", "repository", Severity.PROBLEM): (
        test_hub_doctor.test_a_full_disk_and_a_role_that_has_ended_are_found
    ),
    ("cloud_hub", "database", Severity.FINE): (
        test_hub_doctor.test_a_hub_on_a_server_has_one_line_for_its_database_and_none_for_files
    ),
    ("cloud_hub", "server", Severity.FINE): test_hub_doctor.test_servers_are_named_that_take_no_connection,
}


def list_outcomes(folder: Path) -> Iterator[tuple[str, Severity]]:
    """Each check that a checkup's source names, with each outcome that stands beside it."""
    for path in sorted(folder.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args):
                continue
            name = str(node.args[0].value) if isinstance(node.args[0], ast.Constant) else ""
            if name and node.func.id == "Finding" and isinstance(node.args[1], ast.Attribute):
                yield name, Severity[node.args[1].attr]
            for severity in JUDGED.get(node.func.id, ()) if name else ():
                yield name, severity


CHECKUPS: dict[str, Any] = {"edge_agent": test_doctor, "cloud_hub": test_hub_doctor}


@pytest.mark.parametrize("floor", CHECKUPS)
def test_every_outcome_of_every_check_is_tested(floor: str) -> None:
    tests = CHECKUPS[floor]
    tested = {(check, severity) for _, check, severity, _ in tests.FAULTS.values()}
    tested |= {(check, Severity.FINE) for check in tests.FINE}
    tested |= {(check, severity) for where, check, severity in ELSEWHERE if where == floor}
    found = set(list_outcomes(ROOT / floor / "doctor"))
    assert len(found) > 15
    assert sorted(found - tested) == []


@pytest.mark.parametrize("floor", CHECKUPS)
def test_every_check_of_the_list_can_fail_in_a_test(floor: str) -> None:
    """The names under which checks are run are those of planted faults."""
    run = {
        str(node.value.elts[0].value)
        for path in (ROOT / floor / "doctor").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Yield)
        and isinstance(node.value, ast.Tuple)
        and isinstance(node.value.elts[0], ast.Constant)
    }
    checked = {check.split()[0].removesuffix("s") for _, check, _, _ in CHECKUPS[floor].FAULTS.values()}
    assert len(run) > 5
    assert {name for name in run if name.removesuffix("s") not in checked} == set()

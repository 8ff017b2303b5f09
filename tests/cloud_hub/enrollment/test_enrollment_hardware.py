"""The allow list of machines that may enrol."""

from pathlib import Path

import pytest

from cloud_hub.enrollment.enrollment import HardwareList
from wire.process.exit_codes import ExitCode, ExitError


def test_without_a_list_every_machine_may_enrol():
    assert HardwareList(None).allows_serial("")


def test_only_listed_serial_numbers_may_enrol_and_the_list_may_grow(tmp_path: Path):
    path = tmp_path / "serials"
    path.write_text("# bought in May\nSN-1\n\n  SN-2 \n")
    listed = HardwareList(path)
    assert [listed.allows_serial(s) for s in ("SN-1", "SN-2", "SN-3", "", "# bought in May")] == [
        True,
        True,
        False,
        False,
        False,
    ]
    path.write_text("SN-33\n")
    assert [listed.allows_serial(s) for s in ("SN-1", "SN-33")] == [False, True]


def test_a_list_that_cannot_be_read_allows_nobody(tmp_path: Path):
    path = tmp_path / "serials"
    with pytest.raises(ExitError) as stop:
        HardwareList(path).check_file()
    assert stop.value.code is ExitCode.CONFIG
    path.write_text("SN-1\n")
    listed = HardwareList(path)
    assert listed.allows_serial("SN-1")
    path.unlink()
    assert not listed.allows_serial("SN-1")
    path.write_bytes(b"\xff\xfe")
    assert not listed.allows_serial("SN-1")

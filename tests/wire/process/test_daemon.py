"""Process helpers: systemd notification, watchdog, and the folder lock."""

import itertools
import os
import resource
import signal
import socket
import subprocess
import sys

import pytest

from tests import ROOT
from wire.process.daemon import CpuTimeError, FolderLock, limit_cpu_time, notify_systemd, read_watchdog_interval
from wire.process.exit_codes import ExitCode, ExitError


def in_process(script: str, **variables: str) -> str:
    environment = {**os.environ, **variables}
    run = subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=environment, capture_output=True, check=True)
    return run.stdout.decode().strip()


def test_the_service_manager_hears_us_by_path_and_by_abstract_name(tmp_path):
    script = "import wire.process.daemon; print(wire.process.daemon.notify_systemd('READY=1'))"
    for address in (str(tmp_path / "notify"), f"@skerry-test-{os.getpid()}"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(address.replace("@", "\0"))
            said = in_process(script, NOTIFY_SOCKET=address)
            assert (said, manager.recv(100)) == ("True", b"READY=1")
    for address in ("", str(tmp_path / "nobody"), "not a path"):
        assert in_process(script, NOTIFY_SOCKET=address) == "False"
    assert notify_systemd("READY=1") is False


def test_no_child_inherits_what_systemd_says_to_the_service(tmp_path):
    script = (
        "import subprocess, sys, wire.process.daemon as d; d.take_service_variables();"
        " print(d.notify_systemd('READY=1'), d.read_watchdog_interval(), flush=True);"
        " subprocess.run([sys.executable, '-c', 'import os; print(*sorted(os.environ))'])"
    )
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        said = in_process(script, NOTIFY_SOCKET=str(tmp_path / "notify"), WATCHDOG_USEC="30000000", LISTEN_FDS="1")
    own, inherited = said.splitlines()
    assert own == "True 15.0"
    assert not {name for name in inherited.split() if name.startswith(("NOTIFY", "WATCHDOG", "LISTEN"))}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"WATCHDOG_USEC": "30000000"}, "15.0"),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, "None"),
        ({"WATCHDOG_USEC": "0"}, "None"),
        ({"WATCHDOG_USEC": "soon"}, "None"),
    ],
)
def test_the_watchdog_is_fed_twice_as_often_as_it_bites(variables, expected):
    assert (
        in_process("import wire.process.daemon; print(wire.process.daemon.read_watchdog_interval())", **variables)
        == expected
    )
    assert read_watchdog_interval() is None


def test_a_second_owner_of_a_folder_is_refused_and_a_dead_ones_lock_is_free(tmp_path):
    script = (
        "import os, pathlib, wire.process.daemon;"
        "wire.process.daemon.FolderLock(pathlib.Path()).__enter__(); os._exit(9)"
    )
    with FolderLock(tmp_path):
        with pytest.raises(ExitError, match=f"in use by process {os.getpid()}") as caught:
            FolderLock(tmp_path).__enter__()
        assert caught.value.code is ExitCode.LOCKED
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    died = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=environment, check=False)
    assert died.returncode == 9
    with FolderLock(tmp_path):
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"


def test_a_folder_that_cannot_be_locked_is_one_line(tmp_path):
    with pytest.raises(ExitError) as caught:
        FolderLock(tmp_path / "nothing").__enter__()
    assert caught.value.code is ExitCode.DISK


def test_a_full_disk_takes_the_owners_id_and_not_the_lock(tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        with FolderLock(tmp_path), pytest.raises(ExitError) as caught:
            FolderLock(tmp_path).__enter__()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.code is ExitCode.LOCKED


# the signal may come in a callback of the collector, which swallows its error; it comes again
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_work_beyond_its_cpu_time_is_stopped_and_what_follows_is_not():
    with pytest.raises(CpuTimeError, match=r"more than 0.02 s of CPU time"), limit_cpu_time(0.02):
        sum(number & 1 for number in itertools.count())
    with limit_cpu_time(60):
        assert signal.getitimer(signal.ITIMER_VIRTUAL)[0] > 0
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == signal.getitimer(signal.ITIMER_PROF) == (0, 0)
    assert signal.getsignal(signal.SIGVTALRM) is signal.SIG_DFL

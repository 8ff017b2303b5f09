"""The set-up script against a pretended system: what it asks, installs, leaves alone and does not do twice."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.examples import further, mark_further

TOOLS = ["cat", "chmod", "dirname", "env", "grep", "id", "mkdir", "rm", "sed", "sh", "tee"]
APT_GET = """#!/bin/sh
echo "apt-get $*" >>"$LOG"
case " $* " in *" install "*) ;; *) exit 0 ;; esac
case "$*" in *chromium*)
    [ -z "${APT_FAILS:-}" ] || exit 100
    printf '#!/bin/sh\\n' >"${0%/*}/chromium"; chmod 755 "${0%/*}/chromium"; exit 0 ;;
esac
case "$*" in *gst-rtsp*)
    [ -z "${APT_FAILS:-}" ] || exit 100
    place=$SKERRY_SETUP_SYSROOT/usr/lib/x86_64-linux-gnu/girepository-1.0
    mkdir -p "$place"; printf '' >"$place/GstRtspServer-1.0.typelib"; exit 0 ;;
esac
case "$*" in *strace*)
    [ -z "${APT_FAILS:-}" ] || exit 100
    printf '#!/bin/sh\\n' >"${0%/*}/strace"; chmod 755 "${0%/*}/strace"; exit 0 ;;
esac
for service in mosquitto mosquitto.service postgresql cron; do
    "$SKERRY_SETUP_SYSROOT/usr/sbin/policy-rc.d" --quiet $service start 2>/dev/null
    echo "policy $service $?" >>"$LOG"
done
[ -z "${APT_FAILS:-}" ] || exit 100
place=usr/sbin/mosquitto
case "$*" in *postgresql*) place=usr/lib/postgresql/15/bin/postgres ;; esac
mkdir -p "$SKERRY_SETUP_SYSROOT/${place%/*}"
printf '#!/bin/sh\\n' >"$SKERRY_SETUP_SYSROOT/$place"
chmod 755 "$SKERRY_SETUP_SYSROOT/$place"
"""
PYTHON = """#!/bin/sh
if [ "$1 $2" = "-m venv" ]; then
    echo "venv" >>"$LOG"; mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; exit 0
fi
if [ "$1 $2" = "-m pip" ]; then
    [ "$3" != install ] || echo "pip $*" >>"$LOG"
    case "$* ${MISMATCH:-}" in *requirements/*.txt" "?*)
        printf 'THESE PACKAGES DO NOT MATCH THE HASHES\n    %s from somewhere\n' "$MISMATCH" >&2; exit 1 ;;
    esac
    exit ${PIP_EXIT:-0}
fi
case "$*" in *platform.machine*) PLATFORM; exit 0 ;; esac
exec "REAL" "$@"
"""
LOCKED, NEWER, ARM, OTHER = (
    f"echo {facts}" for facts in ("3.11 Linux x86_64", "3.14 Linux x86_64", "3.13 Linux aarch64", "3.13 Darwin arm64")
)
PIP = "pip -m pip install --quiet --disable-pip-version-check --no-input"
HASHED = f"{PIP} --no-deps --only-binary :all: --require-hashes"


class System:
    """A folder that plays `/`, a PATH with recording doubles, and a clone of the project in a path with a space."""

    def __init__(self, root: Path) -> None:
        self.root, self.bin, self.log = root / "sys", root / "bin", root / "log"
        self.clone = root / "a clone"
        self.policy = self.root / "usr/sbin/policy-rc.d"
        for folder in (self.policy.parent, self.bin, self.clone):
            folder.mkdir(parents=True)
        for name in ("setup.sh", "pyproject.toml", "constraints.txt"):
            shutil.copy(ROOT / name, self.clone)
        shutil.copytree(ROOT / "deploy/requirements", self.clone / "deploy/requirements")
        (self.clone / "clients/python").mkdir(parents=True)
        shutil.copy(ROOT / "clients/python/pyproject.toml", self.clone / "clients/python")
        for tool in (*TOOLS, "cp", "flock"):
            if found := shutil.which(tool):
                (self.bin / tool).symlink_to(found)
        self.program("sudo", '#!/bin/sh\nexec "$@"\n')

    def program(self, name: str, text: str) -> None:
        path = self.bin / name
        path.write_text(text)
        path.chmod(0o755)

    def with_apt(self) -> "System":
        self.program("apt-get", APT_GET)
        self.program("apt-cache", "#!/bin/sh\nexit 0\n")
        return self

    def with_mosquitto(self) -> "System":
        self.program("mosquitto", "#!/bin/sh\n")
        return self

    def with_python(self, platform: str = "exit 1") -> "System":
        """`platform`: what the interpreter does when it is asked what it is."""
        self.program("python3", PYTHON.replace("REAL", sys.executable).replace("PLATFORM", platform))
        return self

    def run(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": str(self.bin), "LOG": str(self.log), "SKERRY_SETUP_SYSROOT": str(self.root), **more}
        return subprocess.run(
            [str(self.clone / "setup.sh"), *words],
            env=environment,
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def did(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture
def system(tmp_path):
    return System(tmp_path)


def test_a_broker_that_is_there_is_left_alone(system):
    assert system.with_mosquitto().with_apt().run("broker", CI="1").returncode == 0
    assert system.did() == []


def test_without_consent_nothing_is_installed(system):
    done = system.with_apt().run("broker")
    assert done.returncode != 0
    assert "YES=1" in done.stderr
    assert system.did() == []


@pytest.mark.parametrize("consent", [{"CI": "true"}, {"YES": "1"}, {}], ids=["ci", "yes", "-y"])
def test_with_consent_the_broker_is_installed(system, consent):
    done = system.with_apt().run(*([] if consent else ["-y"]), "broker", **consent)
    assert done.returncode == 0, done.stderr
    assert (system.root / "usr/sbin/mosquitto").exists()


def test_the_package_may_not_start_its_service_and_others_may_start_theirs(system):
    system.with_apt().run("broker", CI="1")
    assert [line for line in system.did() if line.startswith("policy")] == [
        "policy mosquitto 101",
        "policy mosquitto.service 101",
        "policy postgresql 0",
        "policy cron 0",
    ]
    assert not system.policy.exists()


def test_a_failed_install_leaves_no_policy_behind(system):
    done = system.with_apt().run("broker", CI="1", APT_FAILS="1")
    assert done.returncode != 0
    assert done.stderr.splitlines()[-1] == "setup: apt-get could not install mosquitto"
    assert not system.policy.exists()


def test_the_administrators_own_policy_is_untouched(system):
    system.policy.write_text("#!/bin/sh\nexit 101\n")
    system.policy.chmod(0o755)
    assert system.with_apt().run("broker", CI="1").returncode == 0
    assert system.policy.read_text() == "#!/bin/sh\nexit 101\n"


def test_a_policy_left_by_a_killed_set_up_is_taken_away_by_the_next(system):
    system.policy.write_text("#!/bin/sh\n# written by the Skerry set-up\nexit 101\n")
    assert system.with_apt().run("broker", CI="1").returncode == 0
    assert not system.policy.exists()


def test_under_systemd_the_service_is_masked_until_the_package_lies_there_and_never_started(system):
    (system.root / "run/systemd/system").mkdir(parents=True)
    system.program("systemctl", '#!/bin/sh\necho "systemctl $*" >>"$LOG"\n')
    assert system.with_apt().run("broker", CI="1").returncode == 0
    assert [line for line in system.did() if line.startswith(("systemctl", "apt-get"))] == [
        "systemctl --quiet --runtime mask mosquitto.service",
        "apt-get -q -y --no-install-recommends install mosquitto",
        "systemctl --quiet --runtime unmask mosquitto.service",
        "systemctl --quiet disable mosquitto.service",
    ]
    assert not system.policy.exists()


MISSING = "setup: PostgreSQL is not installed: the tests that need it are skipped"
NO_CAMERA = "setup: GStreamer's RTSP server is not installed: the tests that need it are skipped"
NO_BROWSER = "setup: Chromium is not installed: the tests that need it are skipped"


@pytest.mark.further
def test_for_development_the_database_server_is_installed_once_and_never_started(system):
    system.with_mosquitto().with_apt().with_python(LOCKED)
    for _ in range(2):
        done = system.run("dev", CI="1")
        assert done.returncode == 0, done.stderr
        assert MISSING not in done.stderr
        assert NO_BROWSER not in done.stderr
        assert NO_CAMERA not in done.stderr
    assert [line for line in system.did() if not line.startswith(("pip", "venv"))] == [
        "apt-get -q -y --no-install-recommends install postgresql",
        "policy mosquitto 0",
        "policy mosquitto.service 0",
        "policy postgresql 101",
        "policy cron 0",
        "apt-get -q -y --no-install-recommends install chromium",
        "apt-get -q -y --no-install-recommends install gir1.2-gst-rtsp-server-1.0 gstreamer1.0-plugins-good python3-gi",
        "apt-get -q -y --no-install-recommends install strace",
    ]
    assert not system.policy.exists()


@pytest.mark.parametrize("reason", [{"CI": "1", "APT_FAILS": "1"}, further({})], ids=["apt fails", "nobody agreed"])
def test_without_a_database_server_and_a_browser_all_else_is_set_up_and_their_tests_are_skipped(system, reason):
    done = system.with_mosquitto().with_apt().with_python(LOCKED).run("dev", **reason)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if "skipped" in line and "not installed" in line] == [
        MISSING,
        NO_BROWSER,
        NO_CAMERA,
    ]
    assert any(line.startswith("pip") for line in system.did())
    assert not system.policy.exists()


@pytest.mark.further
def test_the_product_needs_no_database_server_and_no_browser(system):
    system.with_mosquitto().with_apt().with_python(LOCKED)
    assert system.run("demo", CI="1").stderr == ""
    assert not [line for line in system.did() if line.startswith("apt-get")]


def test_elsewhere_brew_installs_it(system):
    here = system.bin / "mosquitto"
    system.program("brew", f'#!/bin/sh\necho "brew $*" >>"$LOG"\n: >"{here}"\nchmod 755 "{here}"\n')
    assert system.run("broker", YES="1").returncode == 0
    assert system.did() == ["brew install mosquitto"]


def test_without_a_known_package_manager_the_message_says_what_to_do(system):
    done = system.run("broker", CI="1")
    assert done.returncode != 0
    assert "Mosquitto broker (2.0 or newer) is missing" in done.stderr


def test_too_old_a_python_is_named(system):
    system.program("python3", "#!/bin/sh\nexit 1\n")
    done = system.with_mosquitto().run("demo", CI="1")
    assert done.returncode != 0
    assert "Python 3.11 to 3.14 is needed" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("said", "unlocked", "taken"),
    [
        ("version_info = (3, 15, 0)", "", False), ("version_info = (3, 15, 0)", "1", True),
        ("version_info = (3, 10, 13)", "1", False), ("version_info = (3, 11, 0)", "", True),
        ("version_info = (3, 14, 2)", "", True), ("implementation.name = 'pypy'", "", False),
    ],
)  # fmt: skip
def test_a_python_that_the_lock_has_no_wheels_for_is_refused_in_one_line(system, tmp_path, said, unlocked, taken):
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nsys.{said}\n")
    system.with_mosquitto().with_python(LOCKED)
    done = system.run("demo", UNLOCKED=unlocked, PYTHONPATH=str(tmp_path))
    assert (done.returncode == 0) is taken, done.stderr
    assert taken or len(done.stderr.splitlines()) == 1
    assert taken or "Python 3.11 to 3.14 is needed" in done.stderr
    assert bool(system.did()) is taken


def test_the_set_up_takes_the_pythons_that_the_lock_is_made_for():
    lines = (ROOT / "deploy/lock.py").read_text(encoding="utf-8").splitlines()
    promised = re.findall(r"3\.(\d+)", next(line for line in lines if line.startswith("PYTHONS = ")).partition("#")[0])
    assert f"oldest={promised[0]} newest={promised[-1]} " in (ROOT / "setup.sh").read_text(encoding="utf-8")
    assert [int(each) for each in promised] == list(range(int(promised[0]), int(promised[-1]) + 1))


def test_packages_are_installed_once_as_locked_with_hashes(system):
    system.with_mosquitto().with_python(LOCKED)
    assert [system.run(level).returncode for level in ("dev", "dev", "demo", "agent")] == [0, 0, 0, 0]
    assert system.did() == [
        "venv",
        f"{HASHED} -r deploy/requirements/dev.txt",
        f"{PIP} --no-deps --no-build-isolation -e . -e clients/python",
    ]


def test_a_device_gets_its_own_packages_and_no_broker(system):
    assert system.with_apt().with_python(LOCKED).run("agent").returncode == 0
    assert system.did()[1:] == [
        f"{HASHED} -r deploy/requirements/agent.txt",
        f"{PIP} --no-deps --no-build-isolation -e .",
    ]


def test_a_device_with_a_64_bit_arm_processor_has_a_lock_of_its_own(system):
    assert system.with_apt().with_python(ARM).run("agent").returncode == 0
    assert f"{HASHED} -r deploy/requirements/agent-aarch64.txt" in system.did()


@pytest.mark.parametrize(("level", "wanted"), [further("agent", "."), ("demo", ".[demo] -e clients/python")])
def test_another_system_gets_the_locked_versions_and_is_told(system, level, wanted):
    done = system.with_mosquitto().with_python(OTHER).run(level)
    assert done.returncode == 0, done.stderr
    assert "no hashes for this system" in done.stdout
    assert system.did()[1:] == [f"{PIP} -c .cache/versions.txt -e {wanted}"]
    pins = (system.clone / ".cache/versions.txt").read_text().splitlines()
    assert pins
    assert all("==" in pin and "sha256" not in pin for pin in pins)


@pytest.mark.further
def test_whoever_asks_for_it_gets_other_builds_of_the_locked_versions(system):
    system.with_mosquitto().with_python(LOCKED).run("demo", UNLOCKED="1")
    assert system.did()[1:] == [f"{PIP} -c .cache/versions.txt -e .[demo] -e clients/python"]


@pytest.mark.further
def test_what_the_demo_needs_is_not_enough_for_the_tests(system):
    system.with_mosquitto().with_python()
    system.run("demo")
    system.run("dev")
    assert [line.split()[-3] for line in system.did()[1:]] == [".[demo]", ".[dev]"]


@pytest.mark.parametrize(
    "name",
    mark_further(
        ["pyproject.toml", "constraints.txt", "deploy/requirements/dev.txt", "clients/python/pyproject.toml"],
        ["pyproject.toml"],
    ),
)
def test_changed_requirements_are_installed_again(system, name):
    system.with_mosquitto().with_python()
    system.run("demo")
    (system.clone / name).write_text("# other\n")
    system.run("demo")
    assert len([line for line in system.did() if line.startswith("pip")]) == 2


@pytest.mark.further
def test_a_moved_clone_gets_a_new_environment(system):
    system.with_mosquitto().with_python()
    system.run("demo")
    system.clone = system.clone.rename(system.clone.parent / "elsewhere")
    system.run("demo")
    assert system.did().count("venv") == 2


@pytest.mark.further
def test_an_install_that_failed_is_not_taken_for_done(system):
    system.with_mosquitto().with_python()
    failed = system.run("demo", PIP_EXIT="1")
    assert failed.returncode != 0
    assert "pip failed" in failed.stderr
    assert system.run("demo").returncode == 0


def test_where_the_index_has_torch_with_cuda_alone_that_one_is_taken_by_its_own_hash(system):
    system.with_mosquitto().with_python(LOCKED)
    ended = system.run("demo", MISMATCH="torch==2.13.0")
    assert ended.returncode == 0, ended.stderr
    assert "torch with CUDA" in ended.stdout
    assert [line for line in system.did() if line.startswith("pip")][1] == (f"{HASHED} -r .cache/lock-cuda.txt")
    pins = (system.clone / ".cache/lock-cuda.txt").read_text().splitlines()
    assert len([pin for pin in pins if pin.startswith("torch==")]) == 1
    assert all("--hash=sha256:" in pin for pin in pins if not pin.startswith("#"))
    assert any(pin.startswith("nvidia-") for pin in pins)


def test_a_newer_python_gets_torch_as_the_public_index_has_it_and_all_else_as_locked(system):
    ended = system.with_mosquitto().with_python(NEWER).run("demo")
    assert ended.returncode == 0, ended.stderr
    assert "with CUDA" in ended.stdout
    assert next(line for line in system.did() if line.startswith("pip")) == f"{HASHED} -r .cache/lock-cuda.txt"
    system.run("agent")
    assert system.did()[-1] == f"{PIP} --no-deps --no-build-isolation -e . -e clients/python"


@pytest.mark.parametrize(("level", "package"), [("demo", "numpy==2.4.6"), ("agent", "torch==2.13.0")])
def test_another_package_whose_hash_differs_is_never_taken(system, level, package):
    system.with_mosquitto().with_python(LOCKED)
    assert system.run(level, MISMATCH=package).returncode != 0
    assert not (system.clone / ".cache/lock-cuda.txt").exists()


def test_a_word_that_is_no_level_is_a_usage_error(system):
    assert system.run("everything").returncode == 2

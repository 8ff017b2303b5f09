"""The tests of a device on 64-bit ARM, under an emulator on this machine: `make arm` (root, Debian; about an hour).

A Debian of that architecture is made in `.cache/arm` (debootstrap, whose second stage runs emulated), the agent's
locked wheels for ARM are installed into it with their hashes, and pytest runs there on a copy of the project. Packages
that only tests need come at their locked versions, for ARM too. Further words go to pytest (ARGS='tests/wire -x').
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import lock

HOME = lock.ROOT / ".cache" / "arm"
_FOLDERS = ("api", "question", "inference", "storage", "stories", "system")
SUITE = (
    *(f"tests/edge_agent/{each}" for each in _FOLDERS), "tests/wire/protocol", "tests/wire/ledger",
    "-m", "not heavy and not further and not postgres",
)  # fmt: skip
_SITE = HOME / "usr/local/lib/python3.11/dist-packages"  # where Debian's Python looks, whatever its environment
_TOOLS = ("debootstrap", "qemu-aarch64-static", "mount", "chroot")
_HANDLER = Path("/proc/sys/fs/binfmt_misc/qemu-aarch64")
# the ELF header of an executable or library for EM_AARCH64 (183), and the bits of it that count
_MAGIC = r"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
_MASK = r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"
# what the tests of a device import beside its own packages: hubs that play the other side, ONNX graphs, references
_TEST_PACKAGES = (
    "absl-py", "brotli", "certifi", "charset-normalizer", "dp-accounting", "dm-tree", "execnet", "gevent",
    "geventhttpclient", "googleapis-common-protos", "greenlet", "hypothesis", "importlib-metadata", "iniconfig",
    "jinja2", "joblib", "markupsafe", "ml-dtypes", "mpmath", "mqtt5", "onnx", "opentelemetry-api",
    "opentelemetry-exporter-otlp-proto-common", "opentelemetry-exporter-otlp-proto-http", "opentelemetry-proto",
    "opentelemetry-sdk", "opentelemetry-semantic-conventions", "pluggy", "pytest", "pytest-asyncio", "pytest-timeout",
    "pytest-xdist", "python-rapidjson", "requests", "safetensors", "scikit-learn", "scipy", "segno",
    "sortedcontainers", "sqlalchemy", "sympy", "threadpoolctl", "tomli-w", "tritonclient", "wrapt", "zipp",
    "zope-event", "zope-interface",
)  # fmt: skip


def make_system() -> None:
    """A Debian for ARM with Python in `HOME`, once; and the kernel's rule that runs its programs by the emulator."""
    if not _HANDLER.exists():
        if not _HANDLER.with_name("register").exists():
            _run("mount", "-t", "binfmt_misc", "binfmt_misc", str(_HANDLER.parent))
        emulator = shutil.which("qemu-aarch64-static")
        _HANDLER.with_name("register").write_text(f":qemu-aarch64:M::{_MAGIC}:{_MASK}:{emulator}:F\n", encoding="ascii")
    if (HOME / "usr/bin/python3.11").exists() and not (HOME / "debootstrap").exists():
        return
    shutil.rmtree(HOME, ignore_errors=True)
    HOME.mkdir(parents=True)
    print("arm: making a Debian for 64-bit ARM; its second stage is emulated and takes minutes", flush=True)
    words = ["--arch=arm64", "--foreign", "--variant=minbase", "--include=python3.11,ca-certificates,sqlite3"]
    _run("debootstrap", *words, "bookworm", str(HOME))
    _run("chroot", str(HOME), "/debootstrap/debootstrap", "--second-stage")
    (HOME / "etc/hosts").write_text("127.0.0.1 localhost\n::1 localhost\n", encoding="ascii")


def install_packages() -> None:
    """The agent's wheels by their hashes, those of the tests at their locked versions, and the project."""
    pins = HOME / "opt/pins.txt"
    shutil.rmtree(_SITE, ignore_errors=True)
    _SITE.mkdir(parents=True)
    tests = [each for each in lock.read_lock("dev")[1] if each.name in _TEST_PACKAGES]
    pins.write_text("".join(f"{each.name}=={each.version}\n" for each in tests), encoding="ascii")
    locked = lock.FOLDER / f"{lock.ARM}.txt"
    for more in (["--require-hashes", "-r", str(locked)], ["-r", str(pins)]):
        words = [
            "install",
            "--quiet",
            "--no-deps",
            *lock.foreign_words("aarch64", lock.LOWEST),
            "--target",
            str(_SITE),
            *more,
        ]
        _run(sys.executable, "-m", "pip", *words)
    words = ["install", "--quiet", "--no-deps", "--no-build-isolation", "--target", str(_SITE), str(lock.ROOT)]
    _run(sys.executable, "-m", "pip", *words)


def copy_tree() -> None:
    """Copy the project as git lists it, changes included."""
    target = HOME / "opt/skerry"
    shutil.rmtree(target, ignore_errors=True)
    listed = _run("git", "ls-files", "-coz", "--exclude-standard", cwd=lock.ROOT).split("\0")
    for name in filter(None, listed):
        if (lock.ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(lock.ROOT / name, target / name)


def run_tests(words: list[str]) -> int:
    """Exit status of pytest in there. /sys stays out: the emulator's guest would read this processor's description."""
    mounts = [HOME / "proc", HOME / "dev"]
    _run("mount", "-t", "proc", "proc", str(mounts[0]))
    _run("mount", "--bind", "/dev", str(mounts[1]))
    try:
        start = "cd /opt/skerry && exec env PYTHONDONTWRITEBYTECODE=1 LC_ALL=C.UTF-8 python3.11 -m pytest"
        given = ["sh", "-c", f'{start} "$@"', "pytest", *(words or SUITE), "--timeout=1800", "-n", str(os.cpu_count())]
        return subprocess.run(["chroot", str(HOME), *given], check=False).returncode
    finally:
        for each in reversed(mounts):
            _run("umount", "--lazy", str(each))


def _run(*words: str, cwd: Path | None = None) -> str:
    """Run a program; its output. SystemExit with its last line if it fails."""
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise SystemExit(f"arm: {words[0]} failed: {said[-1] if said else done.returncode}")
    return done.stdout


def main() -> int:
    """Pytest's exit status; 1 with one line if this machine cannot do it."""
    missing = [tool for tool in _TOOLS if not shutil.which(tool)]
    if missing or os.geteuid():
        named = (
            f"{', '.join(missing)}: apt-get install debootstrap qemu-user-static" if missing else "to be run as root"
        )
        print(f"arm: this needs {named}", file=sys.stderr)
        return 1
    make_system()
    install_packages()
    copy_tree()
    return run_tests(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())

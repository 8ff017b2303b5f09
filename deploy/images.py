"""Container images of agent and hub by podman, on a base that debootstrap makes: `make images` (root, Debian).

No registry of images is asked. The container files are built as they are: their base, a Debian with Python 3.11, is
made by debootstrap and given the name they ask for, and the locked packages are fetched here by pip, with their
hashes, and handed to the build as a folder. Images lie in podman's storage below `.cache/images`, apart from the
machine's own.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

import lock

HOME = lock.ROOT / ".cache" / "images"
BASE = "docker.io/library/python:3.11-slim-bookworm"  # as the container files name it
ROLES = {"agent": "agent", "hub": "region"}  # image: the lock whose packages it has
_TOOLS = ("podman", "debootstrap", "runc")
_INCLUDED = "python3.11,python3.11-venv,python3-venv,python-is-python3,ca-certificates"
# Limits that are below the machine's own, so that a machine which may not raise them (one in a sandbox) runs them too.
RUN_WORDS = ("--network=host", "--ulimit=nofile=4096:4096", "--ulimit=nproc=4096:4096")


def podman(*words: str) -> list[str]:
    """The words of a podman whose storage is ours."""
    places = ("--root", str(HOME / "storage"), "--runroot", str(HOME / "run"))
    return ["podman", *places, "--storage-driver=overlay", "--cgroup-manager=cgroupfs", "--runtime=runc", *words]


def name_image(role: str) -> str:
    """The image's name, with the version of this tree."""
    project = tomllib.loads((lock.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return f"localhost/skerry-{role}:{project['version']}"


def make_base() -> None:
    """Make the base image, once."""
    if subprocess.run(podman("image", "exists", BASE), check=False).returncode == 0:
        return
    with tempfile.TemporaryDirectory(dir=HOME) as folder:
        root, packed = Path(folder) / "root", Path(folder) / "root.tar"
        _run("debootstrap", "--variant=minbase", f"--include={_INCLUDED}", "bookworm", str(root))
        _run("tar", "-C", str(root), "-cf", str(packed), ".")
        _run(*podman("import", str(packed), BASE))


def build_image(role: str) -> str:
    """Build one image by its container file; its name."""
    wheels, settings = HOME / "wheels", HOME / "pip.conf"
    wheels.mkdir(exist_ok=True)
    settings.write_text("[global]\nno-index = true\nfind-links = /wheels\n", encoding="ascii")
    locked = lock.FOLDER / f"{ROLES[role]}.txt"
    words = ("--quiet", "--no-deps", "--require-hashes", "-r", str(locked), "-d", str(wheels))
    _run(sys.executable, "-m", "pip", "download", *words)
    mounts = (f"--volume={wheels}:/wheels:ro", f"--volume={settings}:/etc/pip.conf:ro")
    file = lock.ROOT / "deploy" / "containers" / f"{role}.Containerfile"
    how = ("--network=host", "--isolation=chroot", *mounts, "-f", str(file), "-t", name_image(role))
    _run(*podman("build", *how, str(lock.ROOT)))
    return name_image(role)


def run_image(role: str, *words: str, options: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    """Run a command in a container of an image whose file system cannot be written, and wait for its end."""
    asked = podman("run", "--rm", "--read-only", *RUN_WORDS, *options, name_image(role), *words)
    return subprocess.run(asked, capture_output=True, text=True, check=False, timeout=300)


def _run(*words: str) -> None:
    """Run a program; SystemExit with its last line if it fails."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        told = (done.stderr or done.stdout).strip().splitlines()
        raise SystemExit(f"images: {words[0]} failed: {told[-1] if told else done.returncode}")


def check_tools() -> str:
    """What this machine lacks for it, in words; nothing if it has all."""
    missing = [tool for tool in _TOOLS if not shutil.which(tool)]
    if missing:
        return f"{', '.join(missing)}: apt-get install --no-install-recommends podman buildah runc debootstrap"
    return "to be run as root" if os.geteuid() else ""


def main() -> int:
    """0 if both images were built and say their version; 1 with one line if this machine cannot do it."""
    if lacking := check_tools():
        print(f"images: this needs {lacking}", file=sys.stderr)
        return 1
    HOME.mkdir(parents=True, exist_ok=True)
    make_base()
    for role in sys.argv[1:] or ROLES:
        name = build_image(role)
        ran = run_image(role, "skerry", "--version")
        size = subprocess.run(
            podman("image", "inspect", "--format={{.Size}}", name), capture_output=True, text=True, check=True
        )
        print(f"{name}: {int(size.stdout) / 1e6:.0f} MB; {ran.stdout.strip() or ran.stderr.strip()}")
        if ran.returncode:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

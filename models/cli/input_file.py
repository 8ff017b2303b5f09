"""The file of `--input`: how a picture becomes a sample, as `[input]` of an agent's configuration says it."""

from pathlib import Path

from models.bundle.preparation import Preparation, check_preparation, parse_preparation
from models.forge.data.types import ForgeError
from wire.process.exit_codes import ExitCode
from wire.process.files import read_toml_file


def read_preparation(file: Path) -> Preparation:
    """The preparation in a TOML file: its table `[input]`, as an agent's configuration has it, or its keys alone.

    Raises ForgeError that names the faulty key; the sizes have to be there, for no model is made yet.
    """
    values = read_toml_file(file, ExitCode.CONFIG, "it says how pictures become samples")
    try:
        found = parse_preparation(values.get("input", values))
        check_preparation(found, complete=True)
    except ValueError as error:
        raise ForgeError(f"--input: {file}: {error}") from None
    return found

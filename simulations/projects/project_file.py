"""The file `skerry.toml` of a project: how its bundle is made, its hub, its devices, and its program."""

from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationError

from cloud_hub.system.config_base import ConfigSection
from models.zoo.sources import DATASETS
from wire.process.exit_codes import ExitCode, ExitError
from wire.toml import parse_toml

PROJECT_FILE = "skerry.toml"
_NAME = r"^[a-z0-9][a-z0-9-]{0,39}$"


def _check_name(name: str) -> str:
    if name not in DATASETS:
        raise ValueError(f"{name!r}: no such data set; there are {', '.join(DATASETS)}")
    return name


class DeviceTable(ConfigSection):
    """A device: its bundle and policy, the class of samples that name none, and further tables of its `agent.toml`."""

    name: Annotated[str, Field(pattern=_NAME)]
    bundle: str
    policy: str
    data_class: str = ""
    agent: dict[str, Any] = Field(default_factory=dict)


class HubTable(ConfigSection):
    """The hub: further tables of its `hub.toml`, and its language models."""

    tables: dict[str, dict[str, Any]] = Field(default_factory=dict)
    llm: tuple[dict[str, Any], ...] = ()


class Project(ConfigSection):
    """A project. `makes`: what the commands of `prepare` make; they run, in their order, while one of it is missing.

    `data`: public data sets that it reads (`skerry data list`); it does not begin without them.
    `app`: the program that runs beside hub and devices; "" = none. Paths are relative to the project's folder.
    """

    name: Annotated[str, Field(pattern=_NAME)]
    device: Annotated[tuple[DeviceTable, ...], Field(min_length=1)]
    data: tuple[Annotated[str, AfterValidator(_check_name)], ...] = ()
    prepare: tuple[str, ...] = ()
    makes: tuple[str, ...] = ()
    app: str = ""
    hub: HubTable = HubTable()


def read_project(folder: Path) -> Project:
    """Read the project file of a folder. ExitError(MISSING) if there is none, (CONFIG) if it is none."""
    path = folder / PROJECT_FILE
    try:
        return Project.model_validate(parse_toml(path.read_text(encoding="utf-8-sig")))
    except FileNotFoundError:
        raise ExitError(
            ExitCode.MISSING, f"{folder}: no {PROJECT_FILE} in it; `skerry new NAME` makes a project"
        ) from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ExitError(ExitCode.CONFIG, f"{path}: {where}: {first['msg'].lower()}") from None
    except (OSError, ValueError) as error:
        raise ExitError(ExitCode.CONFIG, f"{path}: {error}") from None

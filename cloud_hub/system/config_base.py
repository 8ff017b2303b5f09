"""Base classes of a configuration whose tables are pydantic models: the hub's, and a project's.

The rules are those of `wire.process.config`, which an agent reads its own by, with less memory.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError

from wire.process.config import DELIMITER, check_variables, find_nearest_key
from wire.process.exit_codes import ExitCode, ExitError


class ConfigSection(BaseModel):
    """Base class of one table of the configuration file: frozen, unknown keys refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ProcessConfig(BaseSettings):
    """Base class of a whole configuration file. A subclass names its `env_prefix`."""

    model_config = SettingsConfigDict(env_nested_delimiter=DELIMITER, extra="forbid", frozen=True)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Order of the sources: the environment beats the file; nothing else is read (no dotenv, no secrets folder)."""
        del settings_cls, dotenv_settings, file_secret_settings
        return env_settings, init_settings


C = TypeVar("C", bound=ProcessConfig)


def build_config(
    model: type[C], values: dict[str, Any], file: Path | None, environment: Mapping[str, str] | None = None
) -> C:
    """Validate the values of `file`, overridden by those of the environment.

    `environment` None: that of the process. Raises ExitError(CONFIG) with one line that names the faulty key.
    """
    check_environment(model, os.environ if environment is None else environment)
    try:
        return model(**values)
    except ValidationError as error:
        raise ExitError(ExitCode.CONFIG, f"{file or 'environment'}: {_describe_first_error(model, error)}") from None
    except SettingsError as error:
        raise ExitError(ExitCode.CONFIG, f"environment: {error}; write lists and sections as JSON") from None


def find_sections(model: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """Tables of a configuration file, by name."""
    kinds = {name: field.annotation for name, field in model.model_fields.items()}
    return {name: kind for name, kind in kinds.items() if isinstance(kind, type) and issubclass(kind, ConfigSection)}


def list_known_keys(model: type[BaseModel]) -> Iterator[str]:
    """Yield every key as it stands in the file, e.g. "api.port"."""
    sections = find_sections(model)
    for name in model.model_fields:
        if name in sections:
            yield from (f"{name}.{key}" for key in _list_names(sections[name]))
        else:
            yield name


def check_environment(model: type[ProcessConfig], environment: Mapping[str, str]) -> None:
    """Refuse unknown environment variables with our prefix; pydantic-settings would ignore them.

    Raises ExitError(CONFIG) that names the nearest known variable.
    """
    check_variables(model.model_config["env_prefix"], (*list_known_keys(model), *find_sections(model)), environment)


def flatten_config(config: BaseModel) -> dict[str, Any]:
    """Values by their key as it stands in the file, e.g. "api.port"; a list of tables is one value."""
    found: dict[str, Any] = {}
    for name, value in config.model_dump(by_alias=True).items():
        if isinstance(value, Mapping) and isinstance(getattr(config, name, None), BaseModel):
            found |= {f"{name}.{key}": inner for key, inner in value.items()}
        else:
            found[name] = value
    return found


def _describe_first_error(model: type[BaseModel], error: ValidationError) -> str:
    """First of pydantic's errors as one line."""
    found = error.errors(include_url=False, include_input=False)[0]
    key = ".".join(str(part) for part in found["loc"])
    if found["type"] == "missing":
        return f"'{key}' is missing"
    if found["type"] == "extra_forbidden":
        near = find_nearest_key(str(found["loc"][-1]), _list_names(_find_section(model, found["loc"][:-1])))
        return f"unknown key {key[:60]}, did you mean {near}?".replace("\n", " ")
    return f"'{key}': {found['msg'][:200]}".replace("\n", " ")


def _find_section(model: type[BaseModel], where: Iterable[str | int]) -> type[BaseModel]:
    """Table at this place of the document; an integer is a place in a list of tables."""
    kind: Any = model
    for part in where:
        kind = get_args(kind)[0] if isinstance(part, int) else kind.model_fields[part].annotation
    section: type[BaseModel] = kind
    return section


def _list_names(section: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in section.model_fields.items()]

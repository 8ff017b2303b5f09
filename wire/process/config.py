"""Configuration of a process: one TOML file, overridden by the environment (`SKERRY_..._API__PORT=8443`), read once.

Tables are msgspec structs, which an agent has in memory anyway: a schema in pydantic takes 17 MB (docs/adr/0049).

Rule: closed. An unknown key is an error that names the nearest known one; nothing is guessed and nothing is ignored.
Paths in the file are relative to the file; paths from the environment to the working directory.
"""

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from wire.process.config_errors import describe_misfit, find_type, list_names, split_error
from wire.process.exit_codes import ExitCode, ExitError

DELIMITER = "__"
_YES_NO = {"yes": True, "y": True, "t": True, "on": True, "no": False, "n": False, "f": False, "off": False}


class ConfigSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    r"""Base class of one table of the configuration file: frozen, unknown keys refused, numbers finite.

    Bounds of a key are its `msgspec.Meta`; what is checked across keys raises ValueError in `__post_init__`. Patterns
    end with `\Z`: `$` would let a line's end through.
    """


class ProcessConfig(ConfigSection, frozen=True):
    """Base class of a whole configuration file."""

    env_prefix: ClassVar[str] = ""


C = TypeVar("C", bound=ProcessConfig)


def build_config(
    model: type[C], values: dict[str, Any], file: Path | None, environment: Mapping[str, str] | None = None
) -> C:
    """Validate the values of `file`, overridden by those of the environment.

    `environment` None: that of the process. Raises ExitError(CONFIG) with one line that names the faulty key.
    """
    given = os.environ if environment is None else environment
    check_variables(model.env_prefix, (*list_known_keys(model), *find_sections(model)), given)
    merged = _merge_environment(model, values, given)
    try:
        made = msgspec.convert(merged, model, strict=False)
    except msgspec.ValidationError as error:
        raise ExitError(ExitCode.CONFIG, f"{file or 'environment'}: {_describe_error(model, error)}") from None
    except RecursionError:
        raise ExitError(ExitCode.CONFIG, f"{file or 'environment'}: too many tables in tables") from None
    if key := _find_infinite(made):
        raise ExitError(ExitCode.CONFIG, f"{file or 'environment'}: '{key}': must be a finite number")
    return made


def _merge_environment(model: type[C], values: dict[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """Put what the variables say over the values of the file; single keys of a table over the whole table."""
    merged, sections = dict(values), find_sections(model)
    said = {name.upper().removeprefix(model.env_prefix).lower(): name for name in environment if _is_ours(model, name)}
    for key in sorted(said, key=lambda key: DELIMITER in key):
        name, _, inner = key.partition(DELIMITER)
        kind: Any = find_type(sections[name] if inner else model, (inner or name,))
        value = _parse_text(kind, environment[said[key]], said[key])
        old = merged.get(name)
        if inner:
            merged[name] = {**old, inner: value} if isinstance(old, dict) else {inner: value}
        else:
            merged[name] = {**old, **value} if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def _is_ours(model: type[ProcessConfig], variable: str) -> bool:
    return variable.upper().startswith(model.env_prefix)


def _parse_text(kind: Any, text: str, variable: str) -> Any:
    """Value of a variable: JSON for lists and tables, else the text; ExitError(CONFIG) for what is no JSON."""
    parts = [get_args(each)[0] if hasattr(each, "__metadata__") else each for each in (kind, *get_args(kind))]
    if bool in parts and text.lower() in _YES_NO:
        return _YES_NO[text.lower()]
    if not any(get_origin(each) in {tuple, dict} or _is_section(each) for each in parts):
        return text
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        if str in parts:  # one of several kinds
            return text
        raise ExitError(
            ExitCode.CONFIG, f"environment: {variable}: no JSON; write lists and sections as JSON"
        ) from None


def _find_infinite(config: ProcessConfig) -> str:
    """The first key whose value is no finite number, "" if all are."""
    left: list[tuple[str, Any]] = [("", msgspec.to_builtins(config))]
    while left:
        key, value = left.pop()
        if isinstance(value, float) and not math.isfinite(value):
            return key
        if isinstance(value, dict):
            left += [(f"{key}.{name}" if key else str(name), each) for name, each in value.items()]
        elif isinstance(value, list | tuple):
            left += [(f"{key}.{place}", each) for place, each in enumerate(value)]
    return ""


def make_absolute(
    values: dict[str, Any], keys: Iterable[tuple[str, ...]], folder: Path, is_path: Callable[[str], bool]
) -> None:
    """Put `folder` before the relative paths at `keys`, in place.

    A key is ("name",) or ("table", "name"); a value may be a list of paths, and a table a list of tables. `is_path`:
    which texts are paths. A value that is no text is left for validation to refuse.
    """
    for *table, key in keys:
        sections = values.get(table[0]) if table else values
        for section in sections if isinstance(sections, list) else [sections]:
            if isinstance(section, dict) and key in section:
                section[key] = _make_value_absolute(section[key], folder, is_path)


def _make_value_absolute(value: Any, folder: Path, is_path: Callable[[str], bool]) -> Any:
    if isinstance(value, list):
        return [_make_value_absolute(each, folder, is_path) for each in value]
    return str(folder / Path(value).expanduser()) if isinstance(value, str) and is_path(value) else value


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, ConfigSection)


def find_sections(model: type[ConfigSection]) -> dict[str, type[ConfigSection]]:
    """Tables of a configuration file, by name."""
    return {name: kind for name, kind in get_type_hints(model).items() if _is_section(kind)}


def list_known_keys(model: type[ConfigSection]) -> Iterator[str]:
    """Yield every key as it stands in the file, e.g. "api.port"."""
    sections = find_sections(model)
    for name in list_names(model):
        if name in sections:
            yield from (f"{name}.{key}" for key in list_names(sections[name]))
        else:
            yield name


def flatten_config(config: ConfigSection) -> dict[str, Any]:
    """Values by their key as it stands in the file, e.g. "api.port"; a list of tables is one value."""
    found: dict[str, Any] = {}
    for name, key in zip(config.__struct_fields__, config.__struct_encode_fields__, strict=True):
        value = getattr(config, name)
        inner = (
            {f"{key}.{each}": held for each, held in flatten_config(value).items()} if _is_section(type(value)) else {}
        )
        found |= inner or {key: value}
    return found


def find_nearest_key(key: str, known: Iterable[str]) -> str:
    """Closest match of `key` among the known ones, however distant; "" if none is known."""
    import difflib  # noqa: PLC0415 - for errors alone

    return next(iter(difflib.get_close_matches(key, sorted(known), 1, 0.0)), "")


def check_variables(prefix: str, keys: Iterable[str], environment: Mapping[str, str]) -> None:
    """Refuse unknown environment variables with our prefix. `keys`: as they stand in the file, and names of tables.

    Raises ExitError(CONFIG) that names the nearest known variable.
    """
    known = {prefix + key.replace(".", DELIMITER).upper() for key in keys}
    for variable in environment:
        if variable.upper().startswith(prefix) and variable.upper() not in known:
            near = find_nearest_key(variable.upper(), known)
            raise ExitError(ExitCode.CONFIG, f"environment: unknown variable {variable[:60]}, did you mean {near}?")


def take_out_removed(
    values: dict[str, Any],
    removed: Mapping[str, str],
    prefix: str,
    file: Path | None,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Refuse keys that an earlier release read, in one line that says what to do.

    `removed`: what to do, by the key or table as it stood in the file; `prefix`: of variables; `environment` None: that
    of the process. A removed table that states nothing is taken out of `values` in place: `init` of the release before
    wrote it. ExitError(CONFIG) for anything else.
    """
    given = os.environ if environment is None else environment
    for key, advice in removed.items():
        *table, name = key.split(".")
        section = values.get(table[0]) if table else values
        if isinstance(section, dict) and name in section:
            if section[name] != {}:
                raise ExitError(ExitCode.CONFIG, f"{file}: '{key}' was removed: {advice}")
            del section[name]
        variable = prefix + key.replace(".", DELIMITER).upper()
        if stated := next((each for each in given if f"{each.upper()}_".startswith(f"{variable}_")), ""):
            raise ExitError(ExitCode.CONFIG, f"environment: {stated[:60]} was removed: {advice}")


def _describe_error(model: type[ProcessConfig], error: msgspec.ValidationError) -> str:
    """The error as one line, with its key and what the key takes."""
    words, where = split_error(str(error))
    kind, field = find_type(model, where.parts), where.named
    key = ".".join(str(part) for part in (*where.parts, *field))
    if where.missing:
        return f"'{key}' is missing"
    if field:
        near = find_nearest_key(field[0], list_names(kind))
        return f"unknown key {key[:60]}, did you mean {near}?".replace("\n", " ")
    return f"'{key}': {describe_misfit(words, kind)}".replace("\n", " ")

"""Command-line flags as one frozen dataclass: each field becomes an option or an argument of a typer command.

Rule: a command takes one value, not twenty parameters; names, defaults and help stand at the fields.
"""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any, TypeVar, get_type_hints

T = TypeVar("T")


def accepts_flags(flags: type[T]) -> Callable[[Callable[[T], None]], Callable[..., None]]:
    """Decorate a command with its flags: `@accepts_flags(Flags) def command(flags: Flags)`.

    What typer sees is a function of the fields of `flags`, with their annotations as options; called, it makes one
    `flags` value and hands it to the command. Name and docstring are the command's.
    """
    hints = get_type_hints(flags, include_extras=True)

    def wrapped(command: Callable[[T], None]) -> Callable[..., None]:
        def call(**given: Any) -> None:
            command(flags(**given))

        call.__name__, call.__doc__ = command.__name__, command.__doc__
        call.__annotations__ = hints
        call.__signature__ = inspect.Signature([_flag_parameter(one, hints) for one in fields(flags)])  # type: ignore[attr-defined,arg-type]
        return call

    return wrapped


def _flag_parameter(field: Any, hints: dict[str, Any]) -> inspect.Parameter:
    """Build the keyword-only parameter of one field, with its default and annotation."""
    default = inspect.Parameter.empty if field.default is MISSING else field.default
    return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hints[field.name])

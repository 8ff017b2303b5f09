"""What pydantic found wrong with a file that a person wrote, as one line: the key, and what to write instead."""

from pydantic_core import ErrorDetails

from policies.language.merging_values_keys import short

_MOST_CHARS = 400


def line(path: str, words: str, others: int) -> str:
    """`path` "" = the whole file. `others`: how many more things are wrong."""
    return one_line(f"{path}{': ' if path else ''}{words}{f' (and {others} more)' if others else ''}")


def one_line(text: str) -> str:
    return " ".join(text.split())[:_MOST_CHARS]


def words(error: ErrorDetails, misfit: str) -> str:
    """`misfit`: what is said of a text that does not have the form of its key."""
    given = short(error["input"])
    match error["type"]:
        case "missing":
            return "is missing"
        case "value_error":
            return str(error.get("ctx", {})["error"])
        case "string_pattern_mismatch":
            return f"{given} {misfit}"
        case "model_type" | "dict_type" | "model_attributes_type":
            return f"must be a table, not {given}"
        case _:
            return f"{error['msg'].replace('Input should be', 'must be')}, not {given}"

"""What a device took from the update repository, in words. Pure."""

import datetime as dt
from typing import Any

Row = tuple[str, str]


def rows(updates: dict[str, Any]) -> list[Row]:
    """`updates` as the agent's status has it: what serves, versions of the documents, how the last look went."""
    versions = {path: str(version) for path, version in updates["versions"].items()}
    policies = [f"{_named(path)} {version}" for path, version in versions.items() if path.startswith("policy/")]
    keys = [f"{_named(path)} {version}" for path, version in versions.items() if path.startswith("keys/")]
    return [
        ("updates", f"{updates['polls']} looks, the last that reached it {_when_or_never(updates['refreshed_ms'])}"),
        ("  model", updates["model"] or "none from there"),
        ("  policy", ", ".join(policies) or "none from there"),
        ("  hub keys", ", ".join(keys) or "those of the enrolment"),
        *(("  failure", failure) for failure in updates["failures"]),
    ]


def install_rows(install: dict[str, Any]) -> list[Row]:
    """`install` as the agent's status has it: what is being tried here, or was last, and why it went back."""
    state, rollout = install["state"], install["rollout"]
    told = f"{state} since {_when_or_never(install['since_ms'])}" if install["since_ms"] else state
    watched = f"{rollout}: {'version ' + str(install['version'])}, {install['cohort']}" if rollout else "none"
    left = [("  starts left", str(install["attempts_left"]))] if install["attempts_left"] else []
    last = f"{install['last']}{', ' + install['why'] if install['why'] else ''}"
    return [("install", told), ("  rollout", watched), *left, *([("  last", last)] if install["last"] else [])]


def _named(path: str) -> str:
    """`demo` of `policy/demo.toml`."""
    return path.partition("/")[2].rpartition(".")[0]


def _when_or_never(ms: int) -> str:
    return dt.datetime.fromtimestamp(ms / 1000, dt.UTC).strftime("%Y-%m-%d %H:%M:%S UTC") if ms else "never"

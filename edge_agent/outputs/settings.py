"""The `[[output]]` table of the agent's configuration, and what of it cannot be meant."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any
from urllib.parse import urlsplit

from msgspec import Meta
from msgspec.structs import fields

from edge_agent.system.site_broker import (
    BROKER_PATHS,
    BrokerSection,
    SiteAddress,
    check_reach,
    parse_broker,
    validate_broker,
)
from wire.process.exit_codes import ExitCode, ExitError

MAX_OUTPUTS = 16
_NOT_IN_TOPICS = re.compile(r"[+#/\x00-\x1f\x7f]")
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_PLACEHOLDERS = frozenset(("device", "model", "label", "kind", "data_class", "source"))
_WEB_PORTS = {"http": 80, "https": 443}
_Word = Annotated[str, Meta(max_length=200)]


class OutputKind(StrEnum):
    """What an output hands answers to."""

    MQTT = "mqtt"
    WEBHOOK = "webhook"
    FOLDER = "folder"
    LINES = "lines"


class RecordChoice(StrEnum):
    """Which records an output hands on."""

    ALL = "all"
    ANSWERS = "answers"
    CORRECTIONS = "corrections"


_COMMON = frozenset(
    ("name", "kind", "only", "data_class", "labels", "min_confidence", "fields", "max_age_s", "allow_plaintext")
)
_KEYS = {
    OutputKind.MQTT: frozenset(
        ("broker", "username", "topic", "retain", "home_assistant", "home_assistant_name", *BROKER_PATHS)
    ),
    OutputKind.WEBHOOK: frozenset(("url", "token_file", "secret_file", "tls_ca", "batch", "attempts", "timeout_s")),
    OutputKind.FOLDER: frozenset(("path", "max_files")),
    OutputKind.LINES: frozenset(("path", "max_bytes", "keep")),
}
OUTPUT_PATHS = ("path", "token_file", "secret_file", *BROKER_PATHS)  # keys of an output that are files


class OutputSection(BrokerSection, frozen=True, kw_only=True):
    """One output of answers and corrections. `name`: letters, digits, `_` and `-`; it names its position on disk.

    `only`, `data_class`, `labels`, `min_confidence`: which records; empty lists mean every one. `fields`: which keys of
    each; empty means all. `max_age_s`: an older record is dropped, and counted, instead of sent.
    `attempts`: how often a web server that answers with an error is asked again with the same records.
    """

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,31}\Z")]
    kind: OutputKind
    only: RecordChoice = RecordChoice.ALL
    data_class: tuple[_Word, ...] = ()
    labels: tuple[_Word, ...] = ()
    min_confidence: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.0
    fields: tuple[_Word, ...] = ()
    max_age_s: Annotated[float, Meta(gt=0)] = 604_800.0
    topic: Annotated[str, Meta(min_length=1, max_length=300, pattern=r"^[^+#\x00]+\Z")] = "skerry/{device}/answers"
    retain: bool = False
    home_assistant: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_/-]{0,100}\Z")] = ""
    home_assistant_name: Annotated[str, Meta(max_length=100)] = ""
    url: Annotated[str, Meta(pattern=r"^(https?://[^\s/@]+(/\S*)?)?\Z", max_length=2000)] = ""
    token_file: str = ""
    secret_file: str = ""
    batch: Annotated[int, Meta(ge=1, le=256)] = 1
    attempts: Annotated[int, Meta(ge=1, le=1000)] = 8
    timeout_s: Annotated[float, Meta(gt=0, le=300)] = 10.0
    path: str = ""
    max_files: Annotated[int, Meta(ge=1, le=1_000_000)] = 10_000
    max_bytes: Annotated[int, Meta(ge=65_536)] = 16 * 1024 * 1024
    keep: Annotated[int, Meta(ge=0, le=1000)] = 4

    def __post_init__(self) -> None:
        """Refuse keys of another kind, and a kind without what it needs."""
        _check_foreign(self.kind, (each.name for each in fields(self) if getattr(self, each.name) != each.default))
        needed = {OutputKind.MQTT: "broker", OutputKind.WEBHOOK: "url"}.get(self.kind, "path")
        if not getattr(self, needed):
            raise ValueError(f"an output of kind {self.kind} needs {needed}")
        unknown = set(_PLACEHOLDER.findall(self.topic)) - _PLACEHOLDERS
        if unknown:
            raise ValueError(f"topic: unknown placeholder {{{min(unknown)}}}")
        if self.home_assistant and (set(_PLACEHOLDER.findall(self.topic)) - {"device"} or self.fields):
            raise ValueError("home_assistant needs one topic, with {device} as its only placeholder, and every field")

    @property
    def leaves_machine(self) -> bool:
        """Whether what is handed on goes to another machine."""
        if self.kind is OutputKind.MQTT:
            return not parse_broker(self.broker).is_local
        return self.kind is OutputKind.WEBHOOK and not self.web_address.is_local

    @property
    def web_address(self) -> SiteAddress:
        """Where a webhook is. ValueError for a port that is none."""
        parts = urlsplit(self.url)
        return SiteAddress(parts.hostname or "", parts.port or _WEB_PORTS[parts.scheme], parts.scheme == "https")


def check_stated_keys(tables: Iterable[Mapping[str, Any]]) -> None:
    """Raise ValueError for a key of another kind that has its default value. `tables`: valid ones, as in the file."""
    for table in tables:
        _check_foreign(OutputKind(table["kind"]), table)


def _check_foreign(kind: OutputKind, stated: Iterable[str]) -> None:
    foreign = set(stated) - _COMMON - _KEYS[kind]
    if foreign:
        raise ValueError(f"an output of kind {kind} has no key {min(foreign)}")


def fill_topic(topic: str, values: dict[str, str]) -> str:
    """A topic with its placeholders filled in; what may not stand in a level of a topic becomes "_"."""
    return _PLACEHOLDER.sub(lambda found: _NOT_IN_TOPICS.sub("_", values[found[1]]) or "_", topic)


def validate_outputs(outputs: Sequence[OutputSection], *, airgap: bool) -> None:
    """Raise ExitError(CONFIG) for an output that this device may not reach, or two of one name."""
    names = [each.name for each in outputs]
    for name in names:
        if names.count(name) > 1:
            raise ExitError(ExitCode.CONFIG, f"output: two are named '{name}'")
    for output in outputs:
        where = f"output '{output.name}'"
        if output.kind is OutputKind.MQTT:
            validate_broker(output, where, airgap=airgap)
        elif output.kind is OutputKind.WEBHOOK:
            _validate_webhook(output, f"{where}.url", airgap=airgap)
    _check_shared_files(outputs)


def _validate_webhook(output: OutputSection, where: str, *, airgap: bool) -> None:
    try:
        address = output.web_address
    except ValueError:
        raise ExitError(ExitCode.CONFIG, f"{where}: no address") from None
    check_reach(where, address, airgap=airgap, allow_plaintext=output.allow_plaintext, tls_name="https")


def _check_shared_files(outputs: Sequence[OutputSection]) -> None:
    """Two outputs that write the same file would cut each other's lines."""
    paths = [path for path in _written_paths(outputs) if path]
    for path in paths:
        if paths.count(path) > 1:
            raise ExitError(ExitCode.CONFIG, f"output: two write to {path}")


def _written_paths(outputs: Sequence[OutputSection]) -> Iterator[str]:
    yield from (each.path.rstrip("/") for each in outputs)

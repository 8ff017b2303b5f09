"""The `[[llm]]` tables of hub.toml, and the language models of a hub that are made of them.

Rule: what can be wrong of a table is found at the start, in one line that names it; that a server does not answer is
no such thing: it is checked for as long as the hub runs.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from cloud_hub.llm.engine_process import PORT_MARK
from cloud_hub.llm.requests import LlmOperation
from cloud_hub.llm.service import LanguageModels, RecordSink
from cloud_hub.llm.settings import LlmSettings, ReplicaAddress
from cloud_hub.storage.prices import UnitPrices
from cloud_hub.system.config_base import ConfigSection
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.files import read_private_text
from wire.process.logging import JsonLog

_DEFAULTS = LlmSettings(name="")
_Url = Annotated[str, Field(pattern=r"^https?://[^\s/@?#]{1,255}(/[^\s@?#]{0,200})?$")]
_Tokens = Annotated[int, Field(ge=1, le=1 << 40)]
_Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Seconds = Annotated[float, Field(gt=0, le=86_400)]
_Bytes = Annotated[int, Field(ge=1024, le=1 << 30)]
_Price = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class ReplicaSection(ConfigSection):
    """One of `urls` that stands in a region of its own."""

    url: _Url
    region: Annotated[str, Field(max_length=64)] = ""


class PriceSection(ConfigSection):
    """Key `price`: in the owner's currency, for a million tokens of each kind, a request, a kWh of cards."""

    input: _Price = 0.0
    cached: _Price = 0.0
    output: _Price = 0.0
    request: _Price = 0.0
    kwh: _Price = 0.0

    def unit_prices(self) -> UnitPrices:
        """Return them as the bill takes them."""
        tokens = {"tokens_in": self.input, "tokens_cached": self.cached, "tokens_out": self.output}
        return UnitPrices(request=self.request, kwh=self.kwh, **tokens)


class LlmSection(ConfigSection):
    """Table [[llm]]: one language model. Each limit is explained at `LlmSettings`."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}$")]
    model: Annotated[str, Field(max_length=256)] = ""
    urls: tuple[_Url | ReplicaSection, ...] = ()
    start: tuple[Annotated[str, Field(min_length=1, max_length=4096)], ...] = ()
    port: Annotated[int, Field(ge=0, le=65535)] = 0
    start_s: _Seconds = _DEFAULTS.start_s
    key_file: Annotated[str, Field(max_length=4096)] = ""
    price: PriceSection = PriceSection()
    check: LlmOperation = _DEFAULTS.check
    context_tokens: Annotated[int, Field(ge=0, le=1 << 31)] = 0
    tenants: frozenset[str] = frozenset()
    residency: dict[str, frozenset[str]] = Field(default_factory=dict)
    region: Annotated[str, Field(max_length=64)] = ""
    max_body_bytes: _Bytes = _DEFAULTS.max_body_bytes
    max_answer_bytes: _Bytes = _DEFAULTS.max_answer_bytes
    max_event_bytes: _Bytes = _DEFAULTS.max_event_bytes
    max_queued_tokens: _Tokens = _DEFAULTS.max_queued_tokens
    max_running: Annotated[int, Field(ge=1, le=100_000)] = _DEFAULTS.max_running
    max_running_tokens: _Tokens = _DEFAULTS.max_running_tokens
    max_wait_s: _Seconds = _DEFAULTS.max_wait_s
    assumed_tokens: _Tokens = _DEFAULTS.assumed_tokens
    tokens_per_s: _Rate = _DEFAULTS.tokens_per_s
    max_questions: Annotated[int, Field(ge=1, le=4096)] = _DEFAULTS.max_questions
    tenant_tokens_per_s: _Rate = _DEFAULTS.tenant_tokens_per_s
    tenant_burst_tokens: _Rate = _DEFAULTS.tenant_burst_tokens
    ready_s: _Seconds = _DEFAULTS.ready_s
    check_s: _Seconds = _DEFAULTS.check_s
    connect_s: _Seconds = _DEFAULTS.connect_s
    first_s: _Seconds = _DEFAULTS.first_s
    stall_s: _Seconds = _DEFAULTS.stall_s
    answer_s: _Seconds = _DEFAULTS.answer_s
    send_s: _Seconds = _DEFAULTS.send_s
    settle_s: _Seconds = _DEFAULTS.settle_s

    @model_validator(mode="after")
    def _check_servers(self) -> "LlmSection":
        """Check that there is a server, and none twice."""
        if bool(self.urls) == bool(self.start):
            raise ValueError("name either its servers, urls = [...], or the program to start, start = [...]")
        if self.start and not any(PORT_MARK in word for word in self.start):
            raise ValueError(f"start needs a word with {PORT_MARK}: the program listens there")
        bases = [each.base for each in self.addresses()]
        if len(set(bases)) != len(bases):
            raise ValueError("a server stands twice in urls")
        return self

    def addresses(self) -> tuple[ReplicaAddress, ...]:
        """Return the servers of `urls`."""
        told = [each if isinstance(each, ReplicaSection) else ReplicaSection(url=each) for each in self.urls]
        return tuple(ReplicaAddress(each.url, each.region) for each in told)

    def settings(self, region: str) -> LlmSettings:
        """Return the settings of the model. `region`: of the hub, where none is told."""
        told = self.model_dump(exclude={"price", "start"}) | {"urls": self.addresses(), "command": self.start}
        return LlmSettings(**told | {"region": self.region or region})


def check_names(sections: Iterable[LlmSection]) -> None:
    """ExitError(CONFIG) if two tables have one name."""
    names = [section.name for section in sections]
    twice = next((name for name in names if names.count(name) > 1), "")
    if twice:
        raise ExitError(ExitCode.CONFIG, f"two [[llm]] tables are named {twice}")


def open_language_models(
    sections: Iterable[LlmSection], region: str, sinks: Iterable[RecordSink], log: JsonLog
) -> LanguageModels:
    """Make the language models of a hub. ExitError(CREDENTIALS) if the key of a model's servers cannot be read."""
    found = tuple(sections)
    keys = {each.name: _read_key(Path(each.key_file)) for each in found if each.key_file}
    return LanguageModels([each.settings(region) for each in found], keys, sinks, log)


def _read_key(path: Path) -> str:
    key = read_private_text(path)
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise ExitError(ExitCode.CREDENTIALS, f"{path} holds no key: one word in one line")
    return key

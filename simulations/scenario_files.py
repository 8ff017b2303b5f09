"""Reads scenario files: TOML into a validated `Scenario`, with every trace, recording, bundle and policy it names.

Rule: nothing is read half. What is unreadable, unknown, impossible or missing is a `ScenarioError` of one line that
names the key, before anything runs; every file that a scenario names is read here, and never again.
"""

from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace
from pydantic import ValidationError

from models.bundle.bundle import read_manifest
from models.bundle.manifest import BundleError
from models.forge.data.types import ForgeError
from models.forge.evaluation.outcomes import OUTCOMES_FILE, read_outcomes
from policies.language.document import parse_policy
from policies.language.values import join_lines
from policies.model.policy import PolicyError
from policies.rollout_rules.plan import RolloutRulesError
from simulations.report.expectations import check_figure_name
from simulations.rollout.fleet import parse_rollout_rules
from simulations.scenario import types
from simulations.scenario.schema import (
    EventTable,
    LoadTable,
    ModelTable,
    ScenarioError,
    ScenarioTable,
    describe_first_error,
)
from simulations.scenario.traces import TraceError, read_trace, validate_trace
from wire.process.exit_codes import ExitCode, ExitError
from wire.toml import parse_toml

MAX_CHARS = 64 << 20  # a trace or a recorded run may stand in the file itself
MOST_BUCKETS = 20_000
BUCKETS = 120  # of a scenario that does not say
MOST_RECORDED = 1_000_000
MAX_EVENTS = 10_000  # of a scenario, each time that one comes again counted
_OF_MEMBERS = frozenset({types.EventKind.STALE_LEASES})
_In = TypeVar("_In")
_Out = TypeVar("_Out")


def list_scenarios() -> list[str]:
    """Names of the scenarios that are shipped, sorted."""
    folder = resources.files("simulations") / "scenarios"
    return sorted(each.name.removesuffix(".toml") for each in folder.iterdir() if each.name.endswith(".toml"))


def find_scenario(wanted: str) -> Path:
    """Path of a shipped scenario by its name, or the given path itself."""
    path = Path(wanted)
    if wanted in list_scenarios() and not path.is_file():
        return Path(str(resources.files("simulations") / "scenarios" / f"{wanted}.toml"))
    return path


def load_scenario(wanted: str) -> types.Scenario:
    """Read the scenario of a shipped name or a file.

    ExitError(MISSING) if there is no such file, ScenarioError if it holds no scenario.
    """
    path = find_scenario(wanted)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ExitError(
            ExitCode.MISSING, f"{wanted}: no such file; scenarios that are shipped: {', '.join(list_scenarios())}"
        ) from None
    except (OSError, ValueError) as error:
        raise ScenarioError(f"{wanted}: {_describe_error(error)}; there are {', '.join(list_scenarios())}") from None
    try:
        return parse_scenario(text, path.parent, path.stem)
    except ScenarioError as error:
        raise ScenarioError(f"{path.name}: {error}") from None


def parse_scenario(text: str, folder: Path | None = None, name: str = "unnamed") -> types.Scenario:
    """Parse the scenario of a TOML text; files that it names are looked for in `folder`.

    `name`: used where the text has none. ScenarioError, one line.
    """
    if len(text) > MAX_CHARS:
        raise ScenarioError(f"{len(text)} characters, a scenario has at most {MAX_CHARS}")
    try:
        table = ScenarioTable.model_validate(parse_toml(text))
    except ValidationError as error:
        raise ScenarioError(describe_first_error(error)) from None
    except (ValueError, RecursionError) as error:
        raise ScenarioError(f"not TOML: {join_lines(str(error))}") from None
    return _validate_scenario(_ScenarioBuilder(folder or Path()).build_scenario(table, name))


class _ScenarioBuilder:
    """Builds a scenario's values from its parsed tables. `folder`: where relative paths begin."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def build_scenario(self, table: ScenarioTable, name: str) -> types.Scenario:
        """Build the whole scenario. `name`: used where the table has none."""
        usual = table.link.to_link()
        return types.Scenario(
            name=table.name or name,
            question=table.question,
            seed=table.seed,
            duration_s=table.duration,
            step_s=table.step or max(0.1, table.duration / BUCKETS),
            devices=table.devices,
            begins_minute=table.begins,
            regions=tuple(each.to_region(usual) for each in table.region),
            load=self._build_load(table.load),
            model=self._build_model(table.model),
            policy=_build_with_key("policy", self._read_policy, table.policy),
            events=self._build_events(table),
            expect=tuple(each.to_expect() for each in table.expect),
            heal_s=table.heal,
            grace_s=table.grace,
            commit_s=table.commit,
            rollout=table.rollout.to_rollout() if table.rollout else None,
        )

    def _build_load(self, table: LoadTable) -> types.Load:
        """Build the load, with its trace."""
        return types.Load(
            kind=types.LoadKind(table.kind),
            samples_per_s=1 / table.every,
            swing=table.swing,
            peak_s=table.peak,
            burst_factor=table.burst_factor,
            burst_every_s=table.burst_every,
            burst_lasts_s=table.burst_lasts,
            trace=_build_with_key("load.trace", self._read_trace, table.trace),
            classes=tuple(table.classes.items()),
        )

    def _read_trace(self, given: str | list[list[float]] | None) -> tuple[types.TraceRow, ...]:
        """Read a trace from a file, or validate one that stands in the scenario."""
        if given is None:
            return ()
        if isinstance(given, str):
            return read_trace(self._folder / given)
        return validate_trace(tuple(types.TraceRow(*row) for row in given))

    def _build_model(self, table: ModelTable) -> types.Model:
        """Build the model: from a bundle, a recording, or the stated shares."""
        stated = types.Model(
            unsure_share=table.unsure_share,
            accuracy_edge=table.accuracy_edge,
            accuracy_unsure=table.accuracy_unsure,
            accuracy_hub=table.accuracy_hub,
            labels=table.labels,
            deciles=tuple(table.deciles or ()),
        )
        if table.bundle is not None:
            return _build_with_key("model.bundle", self._read_bundle, table.bundle)
        if table.replay is None:
            return stated
        if isinstance(table.replay, str):
            return replace(stated, replay=_build_with_key("model.replay", self._read_recorded, table.replay))
        own = table.replay
        recorded = types.RecordedOutcomes(tuple(own.confidence), tuple(own.edge_right), tuple(own.hub_right))
        return replace(stated, replay=recorded)

    def _read_recorded(self, name: str) -> types.RecordedOutcomes:
        """Read recorded outcomes (outcomes.npz, or its folder). ValueError for more than a million."""
        path = self._folder / name
        found = read_outcomes(path / OUTCOMES_FILE if path.is_dir() else path)
        if len(found) > MOST_RECORDED:
            raise ValueError(f"{len(found)} samples, at most {MOST_RECORDED}")
        return types.RecordedOutcomes(
            tuple(found.confidence.tolist()), tuple(found.edge_right.tolist()), tuple(found.hub_right.tolist())
        )

    def _read_bundle(self, name: str) -> types.Model:
        """Model accuracy from a bundle's calibration: the deciles of its confidence, or the measured shares."""
        manifest = read_manifest(self._folder / name)
        seen, deciles = manifest.calibration, manifest.gate.confidence_deciles
        labels = max(2, len(manifest.labels))
        edge, hub = (value if 0 <= value <= 1 else types.Model().accuracy_hub for value in (seen.edge, seen.hub))
        return types.Model(
            unsure_share=seen.asked,
            accuracy_edge=edge,
            accuracy_unsure=edge,
            accuracy_hub=hub,
            labels=labels,
            deciles=tuple(deciles),
        )

    def _build_events(self, table: ScenarioTable) -> tuple[types.ScenarioEvent, ...]:
        """All events; one that comes again stands once for each time."""
        found = [
            self._build_event(place, each, at_s)
            for place, each in enumerate(table.event)
            for at_s in _list_times(each, table.duration)
        ]
        if len(found) > MAX_EVENTS:
            raise ScenarioError(f"event: {len(found)} events with those that come again, {MAX_EVENTS} at most")
        return tuple(found)

    def _build_event(self, place: int, table: EventTable, at_s: float) -> types.ScenarioEvent:
        return types.ScenarioEvent(
            kind=table.kind,
            at_s=at_s,
            lasts_s=table.lasts,
            region=table.region,
            share=table.share,
            device=-1 if table.device is None else table.device,
            hub=table.hub,
            member=table.member or 0,
            amount=table.amount,
            label=-1 if table.label is None else table.label,
            tail=table.tail,
            climate=None if table.link is None else table.link.to_conditions(),
            policy=_build_with_key(f"event[{place}].policy", self._read_policy, table.policy),
        )

    def _read_policy(self, given: str) -> str:
        """Text of a policy: given as such (it has a line break), as a file, or as the name of a shipped template."""
        text = given if "\n" in given or not given else self._find_policy(given).read_text(encoding="utf-8-sig")
        if text:
            parse_policy(text).compile()
        return text

    def _find_policy(self, given: str) -> Path:
        """Path of a policy file, else of the shipped template of that name."""
        path = self._folder / given
        template = Path(str(resources.files("policies") / "templates" / f"{given}.toml"))
        return template if not path.is_file() and "/" not in given and template.is_file() else path


def _build_with_key(key: str, make: Callable[[_In], _Out], given: _In) -> _Out:
    """Call `make(given)`; errors of files and values become a ScenarioError that names the key."""
    try:
        return make(given)
    except (PolicyError, ForgeError, BundleError, TraceError, OSError, ValueError) as error:
        raise ScenarioError(f"{key}: {_describe_error(error)}") from None


def _describe_error(error: Exception) -> str:
    return join_lines((error.strerror or "cannot be read") if isinstance(error, OSError) else str(error))


def _validate_scenario(scenario: types.Scenario) -> types.Scenario:
    """Validate what single tables cannot know of each other. ScenarioError."""
    if scenario.buckets > MOST_BUCKETS:
        raise ScenarioError(f"step: {scenario.step_s:g} s makes {scenario.buckets} buckets, at most {MOST_BUCKETS}")
    _validate_policy(scenario)
    _validate_rollout(scenario)
    _validate_trace(scenario)
    for place, event in enumerate(scenario.events):
        _validate_event(scenario, event, f"event[{place}]")
    hubs = [name for region in scenario.regions for name in region.hub_names]
    for place, expect in enumerate(scenario.expect):
        wrong = check_figure_name(expect.figure, hubs)
        if wrong:
            raise ScenarioError(f"expect[{place}].figure: {wrong}")
        if expect.until_s > scenario.ends_s or expect.from_s >= scenario.ends_s:
            raise ScenarioError(f"expect[{place}].until: the run ends at {scenario.ends_s:g} s")
    return scenario


def _validate_rollout(scenario: types.Scenario) -> None:
    """Only one region, of hubs of one process: one rollout machine speaks to its devices here. ScenarioError."""
    if scenario.rollout is None:
        return
    if any(region.members > 1 for region in scenario.regions):
        raise ScenarioError("rollout: only in a scenario whose hubs have one process each (members = 1)")
    if len(scenario.regions) > 1:
        raise ScenarioError("rollout: only in a scenario of one region")
    try:
        parse_rollout_rules(scenario.rollout)
    except RolloutRulesError as error:
        raise ScenarioError(f"rollout: {error}") from None


def _validate_policy(scenario: types.Scenario) -> None:
    """Refuse a policy under which no device could reach any hub: it answers no question. ScenarioError."""
    base = parse_policy(scenario.policy_text).compile().base
    hubs = {name for region in scenario.regions for name in region.hub_names}
    if not hubs & set(base.hubs):
        raise ScenarioError(
            f"policy: lets hubs {', '.join(base.hubs)} answer; this scenario has {', '.join(sorted(hubs))}"
        )
    regions = {region.name for region in scenario.regions}
    if not regions & set(base.regions):
        raise ScenarioError(
            f"policy: lets regions {', '.join(base.regions)} answer; here are {', '.join(sorted(regions))}"
        )
    if not any(base.data_classes.get(name) for name, _ in scenario.load.classes):
        raise ScenarioError("load.classes: none of them may leave under this policy: no question would ever be asked")


def _validate_trace(scenario: types.Scenario) -> None:
    """Refuse a trace that begins after, or ends before, the scenario. ScenarioError."""
    rows = scenario.load.trace
    if not rows:
        return
    if rows[0].at_s > 0:
        raise ScenarioError(f"load.trace: begins at {rows[0].at_s:g} s, the scenario at 0 s: a gap")
    if rows[-1].at_s < scenario.duration_s:
        raise ScenarioError(
            f"load.trace: ends at {rows[-1].at_s:g} s, the scenario at {scenario.duration_s:g} s: a gap"
        )


def _list_times(event: EventTable, duration_s: float) -> Iterator[float]:
    """When an event comes, in seconds: once, or again and again until its end or that of the samples."""
    yield event.at
    if event.every is not None:
        last = duration_s if event.until is None else min(duration_s, event.until)
        times = min(MAX_EVENTS, int(max(0.0, last - event.at) / event.every))
        yield from (event.at + event.every * (count + 1) for count in range(times))


def _validate_event(scenario: types.Scenario, event: types.ScenarioEvent, key: str) -> None:
    """Refuse an event whose time, region, device, label or hub is not in the scenario. ScenarioError."""
    regions = {region.name: region for region in scenario.regions}
    if event.at_s > scenario.duration_s:
        raise ScenarioError(f"{key}.at: {event.at_s:g} s is after the last sample, at {scenario.duration_s:g} s")
    if event.region and event.region not in regions:
        raise ScenarioError(f"{key}.region: {event.region!r} is none of {', '.join(regions)}")
    if event.device >= scenario.devices:
        raise ScenarioError(f"{key}.device: {event.device} is none of the {scenario.devices}, counted from 0")
    if event.label >= scenario.model.labels:
        raise ScenarioError(f"{key}.label: {event.label} is none of the model's {scenario.model.labels} labels")
    hubs = [name for region in scenario.regions if event.region in ("", region.name) for name in region.hub_names]
    least = min(region.members for name, region in regions.items() if event.region in ("", name))
    if event.member > least:
        raise ScenarioError(f"{key}.member: {event.member} is none of the {least} processes of a hub, counted from 1")
    if event.kind in _OF_MEMBERS and least < 2:
        raise ScenarioError(f"{key}.kind: {event.kind} needs leases, so a region of 2 members or more")
    if event.hub and event.hub not in hubs:
        raise ScenarioError(f"{key}.hub: {event.hub!r} is none of {', '.join(hubs)}")

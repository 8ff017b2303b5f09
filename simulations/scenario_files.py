"""Reads scenario files: TOML into a validated `Scenario`, with every trace, recording, bundle and policy it names.

Rule: nothing is read half. What is unreadable, unknown, impossible or missing is a `ScenarioError` of one line that
names the key, before anything runs; every file that a scenario names is read here, and never again.
"""

import tomllib
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace
from pydantic import ValidationError

from models.bundle.bundle import peek
from models.bundle.manifest import BundleError
from models.forge.data.types import ForgeError
from models.forge.evaluation.outcomes import OUTCOMES_FILE, read_outcomes
from policies.language.document import parse
from policies.language.values import one_line
from policies.model.policy import PolicyError
from policies.rollout.plan import RulesError
from simulations.report.expectations import known
from simulations.rollout.fleet import rules_of
from simulations.scenario import types as made
from simulations.scenario.schema import EventTable, LoadTable, ModelTable, ScenarioError, ScenarioTable, first_of
from simulations.scenario.traces import TraceError, checked, read_trace

MAX_CHARS = 64 << 20  # a trace or a recorded run may stand in the file itself
MOST_BUCKETS = 20_000
BUCKETS = 120  # of a scenario that does not say
MOST_RECORDED = 1_000_000
_In = TypeVar("_In")
_Out = TypeVar("_Out")


def names() -> list[str]:
    """Names of the scenarios that are shipped, sorted."""
    folder = resources.files("simulations") / "scenarios"
    return sorted(each.name.removesuffix(".toml") for each in folder.iterdir() if each.name.endswith(".toml"))


def find(wanted: str) -> Path:
    """Path of a shipped scenario by its name, or the given path itself."""
    path = Path(wanted)
    if wanted in names() and not path.is_file():
        return Path(str(resources.files("simulations") / "scenarios" / f"{wanted}.toml"))
    return path


def load_scenario(wanted: str) -> made.Scenario:
    """Read the scenario of a shipped name or a file.

    ScenarioError if there is no such file, or it holds no scenario.
    """
    path = find(wanted)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ScenarioError(f"{wanted}: {_unread(error)}; there are {', '.join(names())}") from None
    try:
        return read(text, path.parent, path.stem)
    except ScenarioError as error:
        raise ScenarioError(f"{path.name}: {error}") from None


def read(text: str, folder: Path | None = None, name: str = "unnamed") -> made.Scenario:
    """Parse the scenario of a TOML text; files that it names are looked for in `folder`.

    `name`: used where the text has none. ScenarioError, one line.
    """
    if len(text) > MAX_CHARS:
        raise ScenarioError(f"{len(text)} characters, a scenario has at most {MAX_CHARS}")
    try:
        table = ScenarioTable.model_validate(tomllib.loads(text))
    except ValidationError as error:
        raise ScenarioError(first_of(error)) from None
    except (ValueError, RecursionError) as error:  # tomllib's own error is a ValueError
        raise ScenarioError(f"not TOML: {one_line(str(error))}") from None
    return _checked(_Reading(folder or Path()).scenario(table, name))


class _Reading:
    """Builds a scenario's values from its parsed tables. `folder`: where relative paths begin."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def scenario(self, table: ScenarioTable, name: str) -> made.Scenario:
        """Build the whole scenario. `name`: used where the table has none."""
        usual = table.link.link()
        return made.Scenario(
            name=table.name or name,
            question=table.question,
            seed=table.seed,
            duration_s=table.duration,
            step_s=table.step or max(0.1, table.duration / BUCKETS),
            devices=table.devices,
            begins_minute=table.begins,
            regions=tuple(each.region(usual) for each in table.region),
            load=self._load(table.load),
            model=self._model(table.model),
            policy=_named("policy", self._policy, table.policy),
            events=tuple(self._event(place, each) for place, each in enumerate(table.event)),
            expect=tuple(each.expect() for each in table.expect),
            heal_s=table.heal,
            grace_s=table.grace,
            commit_s=table.commit,
            rollout=table.rollout.rollout() if table.rollout else None,
        )

    def _load(self, table: LoadTable) -> made.Load:
        """Build the load, with its trace."""
        return made.Load(
            kind=made.LoadKind(table.kind),
            samples_per_s=1 / table.every,
            swing=table.swing,
            peak_s=table.peak,
            burst_factor=table.burst_factor,
            burst_every_s=table.burst_every,
            burst_lasts_s=table.burst_lasts,
            trace=_named("load.trace", self._trace, table.trace),
            classes=tuple(table.classes.items()),
        )

    def _trace(self, given: str | list[list[float]] | None) -> tuple[made.Row, ...]:
        """Read a trace from a file, or validate one that stands in the scenario."""
        if given is None:
            return ()
        if isinstance(given, str):
            return read_trace(self._folder / given)
        return checked(tuple(made.Row(*row) for row in given))

    def _model(self, table: ModelTable) -> made.Model:
        """Build the model: from a bundle, a recording, or the stated shares."""
        stated = made.Model(
            unsure_share=table.unsure_share,
            accuracy_edge=table.accuracy_edge,
            accuracy_unsure=table.accuracy_unsure,
            accuracy_hub=table.accuracy_hub,
            labels=table.labels,
            deciles=tuple(table.deciles or ()),
        )
        if table.bundle is not None:
            return _named("model.bundle", self._bundle, table.bundle)
        if table.replay is None:
            return stated
        if isinstance(table.replay, str):
            return replace(stated, replay=_named("model.replay", self._recorded, table.replay))
        own = table.replay
        recorded = made.Recorded(tuple(own.confidence), tuple(own.edge_right), tuple(own.hub_right))
        return replace(stated, replay=recorded)

    def _recorded(self, name: str) -> made.Recorded:
        """Read recorded outcomes (outcomes.npz, or its folder). ValueError for more than a million."""
        path = self._folder / name
        found = read_outcomes(path / OUTCOMES_FILE if path.is_dir() else path)
        if len(found) > MOST_RECORDED:
            raise ValueError(f"{len(found)} samples, at most {MOST_RECORDED}")
        return made.Recorded(
            tuple(found.confidence.tolist()), tuple(found.edge_right.tolist()), tuple(found.hub_right.tolist())
        )

    def _bundle(self, name: str) -> made.Model:
        """Model accuracy from a bundle's calibration: the deciles of its confidence, or the measured shares."""
        manifest = peek(self._folder / name)
        seen, deciles = manifest.calibration, manifest.gate.confidence_deciles
        labels = max(2, len(manifest.labels))
        edge, hub = (value if 0 <= value <= 1 else made.Model().accuracy_hub for value in (seen.edge, seen.hub))
        return made.Model(
            unsure_share=seen.asked,
            accuracy_edge=edge,
            accuracy_unsure=edge,
            accuracy_hub=hub,
            labels=labels,
            deciles=tuple(deciles),
        )

    def _event(self, place: int, table: EventTable) -> made.Event:
        return made.Event(
            kind=table.kind,
            at_s=table.at,
            lasts_s=table.lasts,
            region=table.region,
            share=table.share,
            device=-1 if table.device is None else table.device,
            hub=table.hub,
            amount=table.amount,
            label=-1 if table.label is None else table.label,
            tail=table.tail,
            climate=None if table.link is None else table.link.climate(),
            policy=_named(f"event[{place}].policy", self._policy, table.policy),
        )

    def _policy(self, given: str) -> str:
        """Text of a policy: given as such (it has a line break), as a file, or as the name of a shipped template."""
        text = given if "\n" in given or not given else self._policy_file(given).read_text(encoding="utf-8")
        if text:
            parse(text).compile()
        return text

    def _policy_file(self, given: str) -> Path:
        """Path of a policy file, else of the shipped template of that name."""
        path = self._folder / given
        template = Path(str(resources.files("policies") / "templates" / f"{given}.toml"))
        return template if not path.is_file() and "/" not in given and template.is_file() else path


def _named(key: str, make: Callable[[_In], _Out], given: _In) -> _Out:
    """Call `make(given)`; errors of files and values become a ScenarioError that names the key."""
    try:
        return make(given)
    except (PolicyError, ForgeError, BundleError, TraceError, OSError, ValueError) as error:
        raise ScenarioError(f"{key}: {_unread(error)}") from None


def _unread(error: Exception) -> str:
    return one_line((error.strerror or "cannot be read") if isinstance(error, OSError) else str(error))


def _checked(scenario: made.Scenario) -> made.Scenario:
    """Validate what single tables cannot know of each other. ScenarioError."""
    if scenario.buckets > MOST_BUCKETS:
        raise ScenarioError(f"step: {scenario.step_s:g} s makes {scenario.buckets} buckets, at most {MOST_BUCKETS}")
    _policy_fits(scenario)
    _rollout_fits(scenario)
    _trace_fits(scenario)
    for place, event in enumerate(scenario.events):
        _event_fits(scenario, event, f"event[{place}]")
    hubs = [name for region in scenario.regions for name in region.hub_names]
    for place, expect in enumerate(scenario.expect):
        wrong = known(expect.figure, hubs)
        if wrong:
            raise ScenarioError(f"expect[{place}].figure: {wrong}")
        if expect.until_s > scenario.ends_s or expect.from_s >= scenario.ends_s:
            raise ScenarioError(f"expect[{place}].until: the run ends at {scenario.ends_s:g} s")
    return scenario


def _rollout_fits(scenario: made.Scenario) -> None:
    """Only one region: one hub's rollout machine speaks to one region's devices here. ScenarioError."""
    if scenario.rollout is None:
        return
    if len(scenario.regions) > 1:
        raise ScenarioError("rollout: only in a scenario of one region")
    try:
        rules_of(scenario.rollout)
    except RulesError as error:
        raise ScenarioError(f"rollout: {error}") from None


def _policy_fits(scenario: made.Scenario) -> None:
    """Refuse a policy under which no device could reach any hub: it answers no question. ScenarioError."""
    base = parse(scenario.policy_text).compile().base
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


def _trace_fits(scenario: made.Scenario) -> None:
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


def _event_fits(scenario: made.Scenario, event: made.Event, key: str) -> None:
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
    if event.hub and event.hub not in hubs:
        raise ScenarioError(f"{key}.hub: {event.hub!r} is none of {', '.join(hubs)}")

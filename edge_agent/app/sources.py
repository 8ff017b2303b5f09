"""Composition of the sources of samples that a configuration names: the watched folder, and what the supervisor runs.

To add a source: make it in `_make_sources`. Each is imported where one is configured, to keep the process small.
"""

from collections.abc import Coroutine, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from edge_agent.api.service import AnswerService
from edge_agent.app.config import AgentConfig
from edge_agent.app.status import StatusProvider
from edge_agent.identity.identity import load_identity
from edge_agent.sources.feed import PreparationError, SampleFeed, choose_preparation
from edge_agent.sources.source import SampleSource
from edge_agent.sources.supervisor import SourceSupervisor
from models.bundle.manifest import Manifest
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.logging import JsonLog


class SourcedAgent(AnswerService, Protocol):
    """The agent, as far as its sources need it."""

    def add_status_provider(self, side: StatusProvider) -> None:
        """Add a component's fields to the status."""
        ...


def check_input(config: AgentConfig, manifest: Manifest | None) -> None:
    """Raise ExitError(CONFIG) if `[input]` contradicts the bundle that the agent starts with, or is not its input."""
    try:
        if manifest is not None:
            choose_preparation(manifest, config.preparation())
    except PreparationError as error:
        raise ExitError(ExitCode.CONFIG, str(error)) from None


def check_sources(config: AgentConfig) -> None:
    """Raise ExitError(CONFIG) for two sources of one name, and for cameras without the library that decodes them."""
    names = [section.to_settings(number).name for number, section in enumerate(config.camera, 1)]
    sensors = [f"sensor-{section.name}" for section in config.sensor]
    if len({*names, *sensors}) < len(names) + len(sensors):
        raise ExitError(ExitCode.CONFIG, "camera: two of them have one name, or one that of a sensor")
    if names and find_spec("av") is None:
        raise ExitError(ExitCode.CONFIG, "camera: PyAV is not installed: pip install av")


def make_feed(config: AgentConfig, agent: AnswerService, data_class: str = "") -> SampleFeed:
    """The feed of a source. `data_class` "": the agent's."""
    return SampleFeed(agent, data_class or config.data_class, config.preparation())


def start_sources(config: AgentConfig, agent: SourcedAgent, log: JsonLog) -> dict[str, Coroutine[Any, Any, None]]:
    """The work of all sources, by name of its task; what they count appears in the agent's status."""
    tasks: dict[str, Coroutine[Any, Any, None]] = {}
    supervisor = SourceSupervisor(log)
    folder = config.folder
    if folder.path:
        from edge_agent.sources.files.folder import FolderWatcher, KeptFiles  # noqa: PLC0415

        feed = make_feed(config, agent, folder.data_class)
        done = KeptFiles(folder.done_max_files, folder.done_max_bytes)
        watcher = FolderWatcher(Path(folder.path), feed, folder.every_s, log, done)
        supervisor.show("folder", watcher.to_json)
        tasks["folder"] = watcher.run()
    for source, feed in _make_sources(config, agent, log):
        supervisor.add(source, feed)
    if supervisor.sources or tasks:
        agent.add_status_provider(supervisor)
    if supervisor.sources:
        tasks["sources"] = supervisor.run()
    return tasks


_Made = Iterator[tuple[SampleSource, SampleFeed]]


def _make_sources(config: AgentConfig, agent: AnswerService, log: JsonLog) -> _Made:
    """Sources with a device behind them, each with its feed."""
    yield from _make_cameras(config, agent, log) if config.camera else ()
    yield from _make_sensors(config, agent, log) if config.sensor else ()


def _make_cameras(config: AgentConfig, agent: AnswerService, log: JsonLog) -> _Made:
    from edge_agent.sources.cameras.camera import Camera  # noqa: PLC0415

    for number, section in enumerate(config.camera, 1):
        feed = make_feed(config, agent, section.data_class)
        yield Camera(section.to_settings(number), feed, log), feed


def _make_sensors(config: AgentConfig, agent: AnswerService, log: JsonLog) -> _Made:
    from edge_agent.sources.sensor import SensorSource  # noqa: PLC0415

    client = load_identity(Path(config.state)).client_name if config.sensor else ""
    for sensor in config.sensor:
        feed = make_feed(config, agent, sensor.data_class)
        yield SensorSource(sensor, feed, client, log), feed

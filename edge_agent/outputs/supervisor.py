"""All outputs of an agent: made from the configuration, run beside it, and shown in its status.

Rule: an output that fails for a reason nobody thought of is logged and started again; it ends nothing else.
"""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from edge_agent.api.service import AnswerService
from edge_agent.outputs.announced import AnnouncedTopics, Announcement
from edge_agent.outputs.settings import OutputKind, OutputSection
from edge_agent.system.site_broker import validate_broker
from wire.process.exit_codes import ExitError
from wire.process.logging import JsonLog, safe_name

if TYPE_CHECKING:
    from edge_agent.outputs.delivery import OutputDelivery, OutputGate, OutputTarget

_RESTART_PAUSE_S = 5.0
_POLL_S = 0.02
AWAY_ALARM = "output_away"
_ALARM_AFTER_S = 60.0


class OutputOwner(NamedTuple):
    """The agent that outputs belong to: what it answers, what it lets leave, its name, our version, its folder."""

    service: AnswerService
    gate: "OutputGate"
    device: str
    client: str  # our name at a broker, unique there
    software: str
    state: Path
    airgap: bool


class Outputs:
    """Runs the outputs of a configuration; a status provider of the agent."""

    def __init__(self, sections: Sequence[OutputSection], owner: OutputOwner, log: JsonLog) -> None:
        self._owner = owner
        self._log = log
        self._sections = sections
        self._announced = AnnouncedTopics(owner.state)
        self._deliveries = {section.name: self._make_delivery(section) for section in sections}
        self._away_since: dict[str, float] = {}

    @property
    def has_work(self) -> bool:
        """Whether there is an output, or the retained messages of a former one to take away."""
        return bool(self._deliveries) or any(self._list_orphans())

    async def run(self) -> None:
        """Run every output until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for name in self._deliveries:
                tasks.create_task(self._run_output(name), name=f"output {name}")
            for orphan in tuple(self._list_orphans()):
                from edge_agent.outputs.home_assistant import make_id  # noqa: PLC0415 - only where one is needed
                from edge_agent.outputs.mqtt import remove_announced  # noqa: PLC0415

                client_id = f"skerry-{make_id(self._owner.client)}-{orphan.output}"
                tasks.create_task(
                    remove_announced(orphan, self._announced, client_id), name=f"output {orphan.output} removal"
                )

    async def catch_up(self, event: int, within_s: float) -> None:
        """Wait until every output has handed on all records up to `event`, for at most `within_s` seconds.

        One whose target is away is not waited for: it goes on from its position at the next start.
        """
        ends_s = asyncio.get_running_loop().time() + within_s
        while not all(each.has_delivered(event) or each.trouble for each in self._deliveries.values()):
            if asyncio.get_running_loop().time() >= ends_s:
                return
            await asyncio.sleep(_POLL_S)

    async def _run_output(self, name: str) -> None:
        while True:
            try:
                await self._deliveries[name].run()
            except Exception as error:  # noqa: BLE001 - a defect of ours: told, and the output goes on
                self._log.defect("output_defect", error, output=safe_name(name))
            await asyncio.sleep(_RESTART_PAUSE_S)

    def _make_delivery(self, section: OutputSection) -> "OutputDelivery":
        from edge_agent.outputs.delivery import OutputDelivery  # noqa: PLC0415 - only where an output is configured

        owner = self._owner
        target = self._make_target(section)
        return OutputDelivery(section, owner.service, owner.gate, target, owner.state, log=self._log)

    def _make_target(self, section: OutputSection) -> "OutputTarget":
        from edge_agent.outputs.files import FolderOutput, LinesOutput  # noqa: PLC0415

        if section.kind is OutputKind.FOLDER:
            return FolderOutput(section)
        if section.kind is OutputKind.LINES:
            return LinesOutput(section)
        if section.kind is OutputKind.WEBHOOK:
            from edge_agent.outputs.webhook import WebhookOutput  # noqa: PLC0415 - imports an HTTP client

            return WebhookOutput(section)
        from edge_agent.outputs.mqtt import MqttOutput, MqttOwner  # noqa: PLC0415

        owner = self._owner
        me = MqttOwner(owner.device, owner.client, owner.software, lambda: owner.service.manifest, self._announced)
        return MqttOutput(section, me, self._log)

    def _list_orphans(self) -> Iterator[Announcement]:
        """Announcements of outputs that are configured no longer, at brokers that may be reached."""
        announcing = {(each.name, each.broker) for each in self._sections if each.home_assistant}
        for announcement in self._announced:
            if (announcement.output, announcement.keys.get("broker")) in announcing:
                continue
            try:
                validate_broker(announcement.broker, announcement.output, airgap=self._owner.airgap)
            except (ExitError, ValueError, msgspec.ValidationError):
                continue
            yield announcement

    # Status

    def status_fields(self) -> dict[str, Any]:
        """Each output's state and counts, by its name."""
        return {"outputs": {name: each.status_fields() for name, each in self._deliveries.items()}}

    def alarms(self) -> set[str]:
        """`output_away` while the target of an output does not take anything for more than a minute."""
        now = asyncio.get_running_loop().time()
        for name, each in self._deliveries.items():
            if not each.trouble:
                self._away_since.pop(name, None)
            else:
                self._away_since.setdefault(name, now)
        return {AWAY_ALARM} if any(now - since > _ALARM_AFTER_S for since in self._away_since.values()) else set()

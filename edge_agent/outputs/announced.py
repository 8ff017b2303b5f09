"""Which retained messages lie at which broker because of us, in a file, so that they can be taken away later.

Rule: a topic is written down before the message is sent, and forgotten after the broker took its empty successor.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from edge_agent.outputs.position import OUTPUTS_FOLDER
from edge_agent.system.site_broker import BrokerSection
from wire.process.exit_codes import ExitError
from wire.process.files import read_private_file, write_private_file

_FILE = "home-assistant.announced"  # no name of an output's position, which ends in .json
_MAX_BYTES = 4 << 20


class Announcement(msgspec.Struct, frozen=True):
    """Topics with retained messages of one output at one broker. `keys`: of its `BrokerSection`."""

    output: str
    keys: dict[str, str | bool]
    topics: tuple[str, ...]

    @property
    def broker(self) -> BrokerSection:
        """The broker, as the configuration named it."""
        return msgspec.convert(self.keys, BrokerSection)


class AnnouncedTopics:
    """All announcements of the agent; every change is on disk when the call returns."""

    def __init__(self, state: Path) -> None:
        self._path = state / OUTPUTS_FOLDER / _FILE
        self._all: list[Announcement] = []
        with contextlib.suppress(ExitError, msgspec.DecodeError):
            if self._path.exists():
                self._all = msgspec.json.decode(read_private_file(self._path, _MAX_BYTES), type=list[Announcement])

    def __iter__(self) -> Iterator[Announcement]:
        return iter(tuple(self._all))

    def topics_for(self, output: str, broker: BrokerSection) -> tuple[str, ...]:
        """Topics that this output has announced at this broker."""
        return next((each.topics for each in self._all if _is_of(each, output, broker.broker)), ())

    def replace(self, output: str, broker: BrokerSection, topics: tuple[str, ...]) -> None:
        """Write down the topics of an output at a broker; none: forget it. Raises ExitError(DISK)."""
        kept = [each for each in self._all if not _is_of(each, output, broker.broker)]
        keys = {name: getattr(broker, name) for name in BrokerSection.__struct_fields__}
        self._all = [*kept, Announcement(output, keys, topics)] if topics else kept
        self._path.parent.mkdir(mode=0o700, exist_ok=True)
        write_private_file(self._path, msgspec.json.encode(self._all))


def _is_of(announcement: Announcement, output: str, broker: str) -> bool:
    return announcement.output == output and announcement.keys.get("broker") == broker

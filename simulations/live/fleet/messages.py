"""Messages between a live run and the processes that its agents live in, as JSON.

The settings are a file, commands and states are lines, the records that a process leaves behind are a file again.
"""

from enum import StrEnum
from pathlib import Path

import msgspec

from simulations.scenario.types import Scenario

_RECORDS = ".records.json"


class HostSettings(msgspec.Struct, frozen=True):
    """Settings of one of `processes` processes: it has every device whose number leaves `index` over, divided by them.

    `hub_config`: the hub's configuration file, `url`: its web address, `ports`: where each device of the whole fleet
    finds its broker, `folder`: of all devices, `bundle`: their model, `samples`: file of theirs (`SamplePools`).
    `pulse_s`, `ask_s`: see `FleetSettings`.
    """

    scenario: Scenario
    index: int
    processes: int
    hub_config: str
    url: str
    ports: tuple[int, ...]
    folder: str
    bundle: str
    samples: str
    pulse_s: float
    ask_s: float

    @property
    def numbers(self) -> range:
        """The devices of this process."""
        return range(self.index, self.scenario.devices, self.processes)

    @property
    def records_file(self) -> Path:
        """Where the process leaves its records."""
        return Path(self.folder) / f"{self.index}{_RECORDS}"


class HostStep(StrEnum):
    """What a process is told to do next; it enrols its devices without being told."""

    CONNECT = "connect"
    ACT = "act"
    HALT = "halt"
    FINISH = "finish"


class HostCommand(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Command to a process. `began_s`: of `act`, monotonic seconds (those of every process) when the load begins."""

    step: HostStep
    began_s: float = 0.0


class HostState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a process says of itself every second, and when it has done something.

    `enrolled`, `connected`: devices, so far. `online`, `offline`, `down`: of its agents at this moment. `late_s`: how
    far its load fell behind at worst. `over`: load and kills are over. `open`: questions without an outcome, counted
    from then on. `finished`: its agents have stopped, and its records are written.
    """

    enrolled: int = 0
    connected: int = 0
    online: int = 0
    offline: int = 0
    down: int = 0
    open: int = 0
    samples: int = 0
    late_s: float = 0.0
    over: bool = False
    finished: bool = False


class HostRecords(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a process knows at its end and no database has.

    `counts`: its agents' counters, `load`: its driver's, `arrivals`: samples by bucket, `truth`: right label by answer
    id.
    """

    counts: dict[str, int]
    load: dict[str, int]
    arrivals: dict[int, int]
    truth: dict[str, int]

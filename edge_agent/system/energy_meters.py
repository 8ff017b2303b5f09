"""Energy meters of a device: RAPL counters of its processor, its battery, its graphics cards; and its busy cores.

Each is read every few seconds, never for a sample. A meter that cannot be read says why, in one line, and gives
nothing: no figure is made up for it. Sources: Documentation/power/powercap and Documentation/ABI/testing of the kernel
(`energy_uj`, `power_now`), nvmlDeviceGetTotalEnergyConsumption of NVIDIA's management library.
"""

import os
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from edge_agent.system.environment import POWER_SUPPLY, read_line

POWERCAP = "/sys/class/powercap"
_JIFFIES_S = os.sysconf("SC_CLK_TCK")
_IDLE_COLUMNS = (3, 4)  # idle and iowait, of the columns of /proc/stat
_COUNTED_COLUMNS = 8  # what follows, guests, is in `user` already


class MeterError(Exception):
    """A meter cannot be read, now or at all; the message is one line."""


class EnergyMeter(Protocol):
    """A counter of joules that only rises."""

    name: str

    def read_joules(self, now: float) -> float:
        """Joules since some moment; `now`: seconds on a clock that never goes back. MeterError says why there is none.

        A meter that failed and works again goes on from any value: the caller takes differences of two good reads.
        """
        ...


class RaplMeter:
    """The processor's own counters, every package's; what they count differs: cores, caches, on some the memory."""

    name = "rapl"

    def __init__(self, folder: str = POWERCAP) -> None:
        self._folder = Path(folder)
        self._last: dict[Path, int] = {}
        self._joules = 0.0

    def read_joules(self, now: float) -> float:  # noqa: ARG002 - it counts by itself
        """Sum of the packages' counters, each of which starts again from 0 at its range."""
        domains = sorted(self._folder.glob("intel-rapl:*"))
        packages = [each for each in domains if each.name.count(":") == 1]
        if not packages:
            raise MeterError("this processor has no RAPL counters")
        read = {each: _read_number(each / "energy_uj") for each in packages}
        for package, value in read.items():
            before = self._last.get(package, value)
            turn = _read_number(package / "max_energy_range_uj") if value < before else 0
            self._joules += (value - before + turn) / 1e6
        self._last = read
        return self._joules


class BatteryMeter:
    """What the batteries give while the device runs on them: their power, added up from one read to the next."""

    name = "battery"

    def __init__(self, folder: str = POWER_SUPPLY) -> None:
        self._folder = Path(folder)
        self._at: float | None = None
        self._watts = 0.0
        self._joules = 0.0

    def read_joules(self, now: float) -> float:
        """Joules drawn; between two reads the mean of both powers. MeterError while no battery discharges."""
        try:
            watts = self._read_watts()
        except MeterError:
            self._at = None
            raise
        if self._at is not None:
            self._joules += (now - self._at) * (watts + self._watts) / 2
        self._at, self._watts = now, watts
        return self._joules

    def _read_watts(self) -> float:
        drained = []
        with suppress(OSError):
            drained = [each for each in sorted(self._folder.iterdir()) if read_line(each / "status") == "Discharging"]
        if not drained:
            raise MeterError("no battery is discharging")
        return sum(map(_read_battery_watts, drained))


class CardMeter:
    """The graphics cards' own counters, by NVIDIA's driver (the optional package `nvidia-ml-py`)."""

    name = "card"

    def __init__(self) -> None:
        self._driver: Any = None

    def read_joules(self, now: float) -> float:  # noqa: ARG002 - it counts by itself
        """Sum of all cards' counters since the driver was loaded."""
        try:
            driver = self._driver or self._open_driver()
            cards = map(driver.nvmlDeviceGetHandleByIndex, range(driver.nvmlDeviceGetCount()))
            return sum(float(driver.nvmlDeviceGetTotalEnergyConsumption(card)) for card in cards) / 1e3
        except ImportError:
            raise MeterError("the package nvidia-ml-py is not installed: pip install nvidia-ml-py") from None
        except Exception as error:  # noqa: BLE001 - errors of the driver have classes of its own
            self._driver = None
            raise MeterError(f"no card tells: {type(error).__name__}") from None

    def _open_driver(self) -> Any:
        self._driver = import_module("pynvml")
        self._driver.nvmlInit()
        return self._driver


def read_busy_s(stat: Path = Path("/proc/stat")) -> float:
    """Seconds that the machine's cores were busy since it started, all cores together. MeterError if it cannot tell."""
    try:
        with stat.open(encoding="ascii") as opened:
            columns = [int(word) for word in opened.readline().split()[1 : 1 + _COUNTED_COLUMNS]]
        return (sum(columns) - sum(columns[at] for at in _IDLE_COLUMNS)) / _JIFFIES_S
    except (OSError, ValueError, IndexError) as error:
        raise MeterError(f"/proc/stat: {type(error).__name__}") from None


def _read_battery_watts(battery: Path) -> float:
    with suppress(MeterError):
        return abs(_read_number(battery / "power_now")) / 1e6
    return abs(_read_number(battery / "current_now") * _read_number(battery / "voltage_now")) / 1e12


def _read_number(file: Path) -> int:
    try:
        return int(file.read_text(encoding="ascii", errors="replace"))
    except PermissionError:
        raise MeterError(f"{file} may be read by root alone: give the agent's user the right to read it") from None
    except (OSError, ValueError):
        raise MeterError(f"{file} cannot be read") from None

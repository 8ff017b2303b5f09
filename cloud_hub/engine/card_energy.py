"""Energy counters of this machine's graphics cards, from NVML (`nvidia-ml-py`, the extra `cards`).

Rule: reading never fails. A card without a counter (older than Volta), or a driver that does not answer, is left out.
"""

import importlib
from typing import Any, Protocol


class EnergyCounters(Protocol):
    """What the hub reads energy from."""

    def read(self) -> dict[int, int]:
        """Return the millijoules of each card since its driver was loaded, by the card's number."""
        ...


class NvmlEnergyCounters:
    """The counters of all cards that the driver names. `library`: pynvml, initialised."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._handles = {
            index: library.nvmlDeviceGetHandleByIndex(index) for index in range(library.nvmlDeviceGetCount())
        }

    def read(self) -> dict[int, int]:
        found = {}
        for index, handle in self._handles.items():
            try:
                found[index] = int(self._library.nvmlDeviceGetTotalEnergyConsumption(handle))
            except self._library.NVMLError:
                continue
        return found


def open_energy_counters() -> NvmlEnergyCounters | None:
    """Open the counters of this machine's cards; None if there are none, or no library or driver to ask."""
    try:
        library = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        library.nvmlInit()
        counters = NvmlEnergyCounters(library)
    except library.NVMLError:
        return None
    return counters if counters.read() else None

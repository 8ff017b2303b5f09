"""Graphics cards and memory of this machine: from NVML (`nvidia-ml-py`) if it is installed, else from torch, else none.

Rule: looking never fails. A driver that does not answer, or a library that is missing, is a machine without cards.
"""

from pathlib import Path

import torch

from policies.serving.capacity import CardMemory, HostMemory
from wire.process.memory import GROUP_LIMIT, read_group_limit, read_machine_bytes

_BFLOAT16_CAPABILITY = 8  # Ampere
_MEMINFO = Path("/proc/meminfo")


def find_cards() -> tuple[CardMemory, ...]:
    """Find the graphics cards of this machine with their memory; () if there are none."""
    return _ask_driver() or find_usable_cards()


def find_usable_cards() -> tuple[CardMemory, ...]:
    """Find the cards that torch can compute on, with their memory; the driver may know more."""
    found = []
    for index in range(count_usable_cards()):
        free, total = torch.cuda.mem_get_info(index)
        found.append(CardMemory(index, torch.cuda.get_device_name(index), int(total), int(free)))
    return tuple(found)


def count_usable_cards() -> int:
    """Count the cards that torch can compute on; the driver may know more."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def cards_compute_bfloat16() -> bool:
    """Whether the cards compute in bfloat16 themselves (compute capability 8.0 and above)."""
    return bool(count_usable_cards()) and torch.cuda.get_device_capability()[0] >= _BFLOAT16_CAPABILITY


def read_host_memory(meminfo: Path = _MEMINFO, group_limit: Path = GROUP_LIMIT) -> HostMemory:
    """Read the memory of this machine in bytes, or what the service manager allows this process (cgroup v2)."""
    total, free = _read_meminfo(meminfo)
    limit = read_group_limit(group_limit)
    return HostMemory(total, free) if limit is None else HostMemory(min(total, limit), min(free, limit))


def _read_meminfo(meminfo: Path) -> tuple[int, int]:
    try:
        lines = [line.split() for line in meminfo.read_text(encoding="ascii").splitlines()]
        found = {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if len(words) > 1}
        return found["MemTotal"], found["MemAvailable"]
    except (OSError, LookupError, ValueError):
        total = read_machine_bytes()  # macOS has no such file
        return total, total


def _ask_driver() -> tuple[CardMemory, ...]:
    try:
        import pynvml  # noqa: PLC0415 - optional, and seconds where a driver hangs
    except ImportError:
        return ()
    try:
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        return tuple(_describe_handle(pynvml, index, handle) for index, handle in enumerate(handles))
    except pynvml.NVMLError:
        return ()


def _describe_handle(library: object, index: int, handle: object) -> CardMemory:
    """Describe one card by its NVML handle."""
    memory = library.nvmlDeviceGetMemoryInfo(handle)  # type: ignore[attr-defined]
    name = library.nvmlDeviceGetName(handle)  # type: ignore[attr-defined]
    return CardMemory(index, str(name), int(memory.total), int(memory.free))

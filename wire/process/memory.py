"""Memory that this process may have: that of the machine, or what its service manager allows it (cgroup v2)."""

import os
from pathlib import Path

GROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


def read_group_limit(path: Path = GROUP_LIMIT) -> int | None:
    """Read what the service manager allows in bytes; None where it sets no limit, or there is no such group."""
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def read_machine_bytes() -> int:
    """Read how many bytes of memory this machine has."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def read_memory_bytes() -> int:
    """Read how many bytes of memory this process may have."""
    limit = read_group_limit()
    return read_machine_bytes() if limit is None else min(read_machine_bytes(), limit)

"""Describes the machine and the package versions that a table of figures belongs to."""

import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("torch", "onnxruntime", "numpy", "cryptography", "msgspec", "aiohttp", "SQLAlchemy")


def read_load() -> float:
    """Ask before the benchmarks: what else kept the machine busy."""
    return os.getloadavg()[0]


def describe_machine(load: float) -> tuple[tuple[str, str], ...]:
    """(what, value) pairs: processor, cores, memory, system, Python, broker, packages."""
    return (
        ("processor", _cpu_model()),
        ("cores", str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count())),
        ("memory", f"{_memory_gib():.0f} GiB"),
        (
            "system",
            f"{platform.system()} {platform.release().split('-')[0]} {platform.machine()}, {_read_distribution()}",
        ),
        ("load before", f"{load:.1f} processes waiting or running, one-minute average; 0 is quiet"),
        ("Python", platform.python_version()),
        ("Mosquitto", _mosquitto_version()),
        ("packages", ", ".join(_package_versions())),
    )


def _cpu_model() -> str:
    for line in _read_lines("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"


def _kernel_version() -> str:
    return platform.release().partition("-")[0]


def _memory_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def _read_distribution() -> str:
    named = [
        line.split("=", 1)[1].strip('"') for line in _read_lines("/etc/os-release") if line.startswith("PRETTY_NAME=")
    ]
    return named[0] if named else "unknown"


def _mosquitto_version() -> str:
    from cloud_hub.runtime.broker import find_program  # noqa: PLC0415 - needs the hub's packages, unlike the rest

    said = subprocess.run([find_program(), "-h"], capture_output=True, text=True, check=False).stdout
    return said.splitlines()[0].replace("mosquitto version ", "") if said else "unknown"


def _package_versions() -> Iterator[str]:
    for name in PACKAGES:
        try:
            yield f"{name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            yield f"{name} missing"


def _read_lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []

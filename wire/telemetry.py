"""Switches off the telemetry of packages that we import, before any of them is imported.

Rule: a package that reports to its maker, asks whether there is a newer version, or counts its use has its switch in
`SWITCHES`, and nowhere else. `wire/__init__.py` sets them, and every program of ours imports `wire` first; so does
whoever imports `models`. Children inherit them. A value that the environment already has stays: it is its owner's.
"""

import os
from collections.abc import MutableMapping

SWITCHES = {
    "DO_NOT_TRACK": "1",  # the common one: huggingface_hub, and servers of language models that a hub starts
    "ORT_DISABLE_TELEMETRY": "1",  # onnxruntime 1.29 and newer: events and a device id, on Linux too
    "HF_HUB_DISABLE_TELEMETRY": "1",  # huggingface_hub, which transformers imports
    "HF_HUB_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",  # ray, also for a node that `ray start` makes with this environment
    "VLLM_NO_USAGE_STATS": "1",  # vllm, as the command of an [[llm]]
}


def disable_telemetry(environment: MutableMapping[str, str] | None = None) -> None:
    """Set every switch that is not set yet. `environment`: this process's own by default."""
    target = os.environ if environment is None else environment
    for name, value in SWITCHES.items():
        target.setdefault(name, value)

"""Reads the load that an engine reports on its own `/metrics`. Pure.

Rule: whatever is missing or damaged counts as not reported; an engine's report changes its rank and nothing else.
Sources: metric names of vLLM 0.32 (`vllm/v1/metrics/loggers.py`), SGLang 0.5, TGI 3; the mapping is that of the Gateway
API Inference Extension's model server contract (proposal 003).
"""

import math
import re

import msgspec

MAX_METRICS_BYTES = 4 * 1024 * 1024
_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? ([^ ]+)(?: \d+)?$")
_BLOCK_SIZE = re.compile(r'block_size="(\d{1,6})"')
_WAITING = frozenset({"vllm:num_requests_waiting", "sglang:num_queue_reqs", "tgi_queue_size"})
_RUNNING = frozenset({"vllm:num_requests_running", "sglang:num_running_reqs", "tgi_batch_current_size"})
_KV_USAGE = frozenset({"vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage"})


class EngineMetrics(msgspec.Struct, frozen=True):
    """Load that an engine reports: requests, share of the KV cache in use, tokens of one cache block (0 = not told)."""

    waiting: int = 0
    running: int = 0
    kv_usage: float = 0.0
    block_tokens: int = 0


def parse_metrics(text: str) -> EngineMetrics:
    """Parse Prometheus' text format; several engines behind one server (data parallel) are added up."""
    sums = {"waiting": 0.0, "running": 0.0}
    kv_usage, block_tokens = 0.0, 0
    for line in text.splitlines():
        match = _SAMPLE.match(line)
        if match is None:
            continue
        name, labels, value = match[1], match[2] or "", _read_value(match[3])
        if name in _WAITING:
            sums["waiting"] += value
        elif name in _RUNNING:
            sums["running"] += value
        elif name in _KV_USAGE:
            kv_usage = max(kv_usage, min(1.0, value))
        elif name == "vllm:cache_config_info" and (size := _BLOCK_SIZE.search(labels)):
            block_tokens = int(size[1])
    return EngineMetrics(int(sums["waiting"]), int(sums["running"]), kv_usage, block_tokens)


def _read_value(text: str) -> float:
    """Return a sample's value, 0 for anything that is no plain number of requests."""
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if math.isfinite(value) and 0 <= value < 1e9 else 0.0

"""Jobs for tests."""

from typing import Any

from cloud_hub.jobs.states import Job, JobState, shard_of_job

NOW_MS = 1_800_000_000_000


def job(job_id: str = "a", **changes: Any) -> Job:
    """A job that waits, with a minute of its own."""
    values: dict[str, Any] = {
        "id": job_id, "tenant": "acme", "caller": "key-1", "shard": shard_of_job(job_id), "model": "echo",
        "state": JobState.QUEUED, "made_ms": NOW_MS, "not_before_ms": NOW_MS, "timer_ms": NOW_MS + 60_000,
        "timeout_ms": 60_000, "fingerprint": b"f" * 32,
    }  # fmt: skip
    return Job(**{**values, **changes})

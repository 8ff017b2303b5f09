"""Bodies, answers and webhooks of jobs at rest: sealed under the region's key, or the hub's own where it is alone.

Rule: nothing that a caller handed over, and nothing that was computed of it, is stored in the clear; a sealed value
counts under its own job and place alone.
"""

from pathlib import Path

from cloud_hub.region.vault import RegionVault, create_region_key, load_region_key

KEY_FILE = "jobs.key"  # of a hub that is alone, in its folder of keys


class JobVault:
    """Seals and opens what belongs to a job."""

    def __init__(self, vault: RegionVault) -> None:
        self._vault = vault

    @classmethod
    def open(cls, keys: Path) -> "JobVault":
        """Open with the key in a hub's folder of keys, which is drawn at first. ExitError if it is none."""
        file = keys / KEY_FILE
        return cls(RegionVault(load_region_key(file) or create_region_key(file)))

    def seal_body(self, job_id: str, body: bytes) -> bytes:
        return self._vault.seal(f"job {job_id} body", body)

    def open_body(self, job_id: str, sealed: bytes) -> bytes:
        """WrongRegionKeyError if it was not sealed here."""
        return self._vault.unseal(f"job {job_id} body", sealed)

    def seal_answer(self, job_id: str, answer: bytes) -> bytes:
        return self._vault.seal(f"job {job_id} answer", answer)

    def open_answer(self, job_id: str, sealed: bytes) -> bytes:
        """WrongRegionKeyError if it was not sealed here."""
        return self._vault.unseal(f"job {job_id} answer", sealed)

    def seal_hook(self, job_id: str, url: str) -> bytes:
        return self._vault.seal(f"job {job_id} hook", url.encode())

    def open_hook(self, job_id: str, sealed: bytes) -> str:
        """WrongRegionKeyError if it was not sealed here."""
        return self._vault.unseal(f"job {job_id} hook", sealed).decode()

    def digest_key(self, tenant: str, key: str) -> bytes:
        """Digest of an Idempotency-Key within its tenant."""
        return self._vault.digest("job key", f"{tenant}\0{key}".encode())

    def digest_payload(self, payload: bytes) -> bytes:
        """Digest by which a repeat of a request is told from another one under the same key."""
        return self._vault.digest("job payload", payload)

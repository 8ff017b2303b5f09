"""Settings of one language model of the hub: where its replicas are, and how much they take."""

import msgspec

from cloud_hub.llm.requests import LlmOperation


class ReplicaAddress(msgspec.Struct, frozen=True):
    """One server of a model. `url`: up to the `/v1`; `region`: where it stands, for residency and the bill."""

    url: str
    region: str = ""

    @property
    def base(self) -> str:
        """The URL without `/v1` and without a slash at its end."""
        return self.url.rstrip("/").removesuffix("/v1").rstrip("/")


class LlmSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One language model. Times in seconds, sizes in bytes, work in tokens.

    `name`: what callers ask for; `model`: what the engines call it ("" = the same). `command`: the program that the hub
    starts as the one replica, with `{port}` where its port stands, () = attached ones; `port`: 0 = a free one.
    `key_file`: file with the engines' bearer token, "" = none. `tenants`: who sees the model, empty = everybody.
    `residency`: by tenant, the regions where its requests may be computed; a tenant that is not named may be served
    anywhere.

    `max_running`, `max_running_tokens`: what one replica is given at once; more waits in the hub, in fair order.
    `assumed_tokens`: what an answer counts for whose request says no limit. `tokens_per_s`: throughput of a replica
    until it was measured. `max_questions`: of devices that ask through one text model and are waited for at once; more
    wait in the queue of that model. `tenant_tokens_per_s`, `tenant_burst_tokens`: rate limit of a tenant.

    `ready_s`: between two checks; `check_s`: what the completion of one token may take; `start_s`: what a started
    engine may take to get ready; `connect_s`: to connect; `first_s`: until an answer begins; `stall_s`: between two
    events of a stream; `answer_s`: a whole answer; `send_s`: for the caller to take a chunk; `settle_s`: for an engine
    to stop, and to say what it computed, once the caller has hung up.
    """

    name: str
    model: str = ""
    urls: tuple[ReplicaAddress, ...] = ()
    command: tuple[str, ...] = ()
    port: int = 0
    key_file: str = ""
    check: LlmOperation = LlmOperation.COMPLETION
    context_tokens: int = 0
    tenants: frozenset[str] = frozenset()
    residency: dict[str, frozenset[str]] = {}
    region: str = ""
    max_body_bytes: int = 4 * 1024 * 1024
    max_answer_bytes: int = 64 * 1024 * 1024
    max_event_bytes: int = 1024 * 1024
    max_queued_tokens: int = 4_000_000
    max_running: int = 64
    max_running_tokens: int = 262_144
    max_wait_s: float = 60.0
    assumed_tokens: int = 1024
    tokens_per_s: float = 1000.0
    max_questions: int = 64
    tenant_tokens_per_s: float = 1_000_000.0
    tenant_burst_tokens: float = 4_000_000.0
    ready_s: float = 5.0
    check_s: float = 30.0
    start_s: float = 600.0
    connect_s: float = 5.0
    first_s: float = 120.0
    stall_s: float = 60.0
    answer_s: float = 600.0
    send_s: float = 30.0
    settle_s: float = 2.0

    @property
    def engine_model(self) -> str:
        """The model's name at its engines."""
        return self.model or self.name

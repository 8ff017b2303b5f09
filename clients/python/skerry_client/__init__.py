"""Client of Skerry: ask a device about a sample, get its answer and the hub's correction of it.

    with skerry_client.Agent("http://127.0.0.1:8090") as agent:
        answer = agent.ask(sample)
        for correction in agent.answers.corrections(after=answer): ...

`Agent` and `Hub` block, `AsyncAgent` and `AsyncHub` have the same calls as coroutines.
"""

from skerry_client.agent import Agent, AskMode, AsyncAgent
from skerry_client.answers import Answer, AnswerKind, AnswerSource, Explanation, Timings, Usage
from skerry_client.errors import (
    APIConnectionError,
    APIResponseValidationError,
    APIStatusError,
    APITimeoutError,
    ArgumentError,
    AuthenticationError,
    BadRequestError,
    ConflictError,
    InternalServerError,
    NotFoundError,
    PermissionDeniedError,
    RateLimitError,
    SampleError,
    ServiceUnavailableError,
    SkerryError,
    UnprocessableEntityError,
    UnsureError,
)
from skerry_client.fleet import Device, Invite, ModelVersion
from skerry_client.hub import AsyncHub, Bill, CostLine, Hub
from skerry_client.inference import Prediction, ServedModel
from skerry_client.jobs import Batch, BatchAnswer, Job, JobOptions, JobState
from skerry_client.rollouts import Rollout, RolloutDevice, RolloutStep, RolloutTarget, Wave
from skerry_client.samples import ModelInput

__all__ = [
    "APIConnectionError",
    "APIResponseValidationError",
    "APIStatusError",
    "APITimeoutError",
    "Agent",
    "Answer",
    "AnswerKind",
    "AnswerSource",
    "ArgumentError",
    "AskMode",
    "AsyncAgent",
    "AsyncHub",
    "AuthenticationError",
    "BadRequestError",
    "Batch",
    "BatchAnswer",
    "Bill",
    "ConflictError",
    "CostLine",
    "Device",
    "Explanation",
    "Hub",
    "InternalServerError",
    "Invite",
    "Job",
    "JobOptions",
    "JobState",
    "ModelInput",
    "ModelVersion",
    "NotFoundError",
    "PermissionDeniedError",
    "Prediction",
    "RateLimitError",
    "Rollout",
    "RolloutDevice",
    "RolloutStep",
    "RolloutTarget",
    "SampleError",
    "ServedModel",
    "ServiceUnavailableError",
    "SkerryError",
    "Timings",
    "UnprocessableEntityError",
    "UnsureError",
    "Usage",
    "Wave",
]

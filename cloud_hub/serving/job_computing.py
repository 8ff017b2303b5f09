"""Jobs in the hub's queues: a job is a web request of the lowest priority, under the turns and limits of its tenant."""

import math

from cloud_hub.core.web_requests import REPLY_SHARE, InferOptions, InferRefusedError
from cloud_hub.jobs.decisions import JobAnswer, JobOutcome, JobRefusal
from cloud_hub.jobs.states import Job
from cloud_hub.serving.infer_answers import encode_answer, read_samples
from cloud_hub.serving.web_inference import WebInference
from wire.http import oip
from wire.http.oip import OipError
from wire.protocol.messages import RefusalReason

LOWEST = 3  # the protocol's number of the lowest priority band


class QueuedComputer:
    """Computes jobs through `WebInference`."""

    def __init__(self, inference: WebInference) -> None:
        self._inference = inference

    def check(self, model: str, body: bytes, _tenant: str) -> None:
        """OipError(404 or 400) if no such model is served, it does not take a request, or a job's says too much."""
        card = self._inference.card_for(model)
        if card is None:
            raise OipError(404, "this hub serves no such model or version")
        asked = oip.parse_infer_request(body)
        if asked.parameters:
            raise OipError(400, "a job's request has no parameters: its time is the job's timeout_s")
        if asked.binary_default or any(want.binary for want in asked.wanted):
            raise OipError(400, "a job is answered in JSON: binary outputs are not offered")
        if not card.accepts_inputs(read_samples(asked, card)):
            raise OipError(400, "the input does not fit the model")

    async def compute(self, job: Job, body: bytes, timeout_s: float) -> JobOutcome:
        """Compute a job; every refusal is an outcome. `timeout_s`: what is left of its own time."""
        card = self._inference.card_for(job.model)
        if card is None:
            return JobRefusal(RefusalReason.MODEL_GONE)
        if not timeout_s > 0:
            return JobRefusal(RefusalReason.EXPIRED)
        try:
            asked = oip.parse_infer_request(body)
            # The queue keeps a share of the time for the reply; nobody waits for this one, so it has all of it.
            patience_s = math.ceil(timeout_s / (1.0 - REPLY_SHARE))
            wish = InferOptions(
                job.tenant, LOWEST, patience_s, flow=job.caller, background=True, request_bytes=len(body)
            )
            predictions = await self._inference.infer(card.name, read_samples(asked, card), wish)
            return JobAnswer(encode_answer(asked, card, predictions).body)
        except OipError as error:
            return JobRefusal(RefusalReason.SCHEMA, detail=str(error))
        except InferRefusedError as refused:
            return JobRefusal(refused.reason, refused.retry_after_s)

"""HTTP routes of the Open Inference Protocol v2 (KServe), as an unmodified `tritonclient[http]` calls them.

Rule: a request is checked as a whole before its first sample is answered, so a batch is never half accepted.
"""

import asyncio
import difflib
import re
import secrets
from typing import Any, NamedTuple

import msgspec
from aiohttp import web

from edge_agent.api.service import AnswerService, parameters, traceparent_of
from edge_agent.core.records import AnswerRecord, DisabledError, NoModelError, Sample
from edge_agent.inference.requests import MAX_CHARS
from models.bundle.manifest import Manifest
from models.runtime.runner import SampleError, check_samples
from wire.http import oip
from wire.http.guards import read_body
from wire.http.oip import OipError, answer_outputs, answer_tensors

SERVER = "skerry-agent"
PLATFORM = "skerry_edge"
PARAMETERS = ("data_class", "subject")
_HARMLESS = frozenset({"priority", "timeout", "sequence_id", "sequence_start", "sequence_end"})
_DATA_CLASS = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class InferLimits(msgspec.Struct, frozen=True):
    """Limits of an inference request, and the data class of samples that name none.

    `data_class` "": a class that no policy lists, so that nothing leaves.
    """

    max_body_bytes: int = 4 * 1024 * 1024
    max_batch: int = 256
    data_class: str = ""


def model_card(manifest: Manifest) -> oip.ModelCard:
    """Metadata of the one model that an agent serves: its input, and the outputs that every answer has."""
    spec = manifest.input
    outputs = answer_outputs(manifest.labels, manifest.outputs)
    inputs = (oip.TensorSpec(spec.name, spec.dtype.value, (-1, *spec.shape)),)
    return oip.ModelCard(manifest.name, (str(manifest.version),), PLATFORM, inputs, outputs)


class Served(NamedTuple):
    """The model that answers, and its metadata."""

    manifest: Manifest
    card: oip.ModelCard


class OipRoutes:
    """Routes that serve the agent's model under `/v2`. `version`: of the server, as its metadata says."""

    def __init__(self, service: AnswerService, version: str, limits: InferLimits) -> None:
        self._service = service
        self._served: Served | None = None
        self._server_version = version
        self._limits = limits

    def routes(self) -> list[web.RouteDef]:
        """All routes with their handlers; each model route with and without a version."""
        both = ("/v2/models/{model}", "/v2/models/{model}/versions/{version}")
        return [
            web.get("/v2", self.server),
            web.get("/v2/health/live", self.live),
            web.get("/v2/health/ready", self.ready),
            *(web.get(path, self.model) for path in both),
            *(web.get(f"{path}/ready", self.model_ready) for path in both),
            *(web.post(f"{path}/infer", self.infer) for path in both),
        ]

    async def server(self, _: web.Request) -> web.Response:
        """`GET /v2`: name, version and extensions of the server."""
        return _json(oip.server_metadata(SERVER, self._server_version))

    async def live(self, _: web.Request) -> web.Response:
        """`GET /v2/health/live`: the event loop runs."""
        return _json({"live": True})

    async def ready(self, _: web.Request) -> web.Response:
        """`GET /v2/health/ready`: 503 without a model, and in mode `disabled`."""
        self._now()
        self._enabled()
        return _json({"ready": True})

    async def model(self, request: web.Request) -> web.Response:
        """`GET /v2/models/{model}`: the model's inputs, outputs and versions."""
        return _json(oip.model_metadata(self._known(request).card))

    async def model_ready(self, request: web.Request) -> web.Response:
        """`GET /v2/models/{model}/ready`: the model is served, and the policy's mode lets it answer."""
        served = self._known(request)
        self._enabled()
        return _json({"name": served.card.name, "ready": True})

    async def infer(self, request: web.Request) -> web.Response:
        """`POST /v2/models/{model}/infer`: one answer for each sample of the batch.

        Parameters: `data_class`, and `subject`: the data subject that the samples are about. 400 for a request that
        does not fit the model, 503 without a model or in mode `disabled`.
        """
        served = self._known(request)
        body = await read_body(request, self._limits.max_body_bytes)
        asked = oip.parse_infer(body, request.headers.get(oip.HEADER_LENGTH))
        samples = self._samples(asked, request, served)
        try:
            records = await asyncio.gather(*(self._service.infer(sample) for sample in samples))
        except SampleError as error:
            raise OipError(400, str(error)) from None
        except NoModelError:
            raise _no_model() from None
        except DisabledError:
            raise _disabled() from None
        reply = oip.encode_infer(_response(records, asked.id, served), asked)
        return web.Response(body=reply.body, headers=reply.headers())

    def _samples(self, asked: oip.InferRequest, request: web.Request, served: Served) -> list[Sample]:
        """The samples of a request, with data class, trace and subject. OipError(400) if one does not fit the model."""
        data_class = _data_class(asked.parameters, self._limits.data_class)
        (name,) = (spec.name for spec in served.card.inputs)
        batch = oip.require(asked, served.card.inputs, self._limits.max_batch)[name]
        try:
            check_samples(batch, served.manifest.input)
        except SampleError as error:
            raise OipError(400, str(error)) from None
        oip.check_wanted(asked, [spec.name for spec in served.card.outputs])
        trace = traceparent_of(request.headers, secrets.token_hex(24))
        subject = _subject(asked.parameters)
        return [Sample(x, data_class, trace, subject) for x in batch]

    def _known(self, request: web.Request) -> Served:
        """The model that answers now, if it is the one that the request names; else 404."""
        served = self._now()
        model, version = request.match_info["model"], request.match_info.get("version")
        if model != served.card.name:
            raise OipError(404, f"unknown model '{oip.short(model)}', this device serves '{served.card.name}'")
        if version is not None and version not in served.card.versions:
            here = served.card.versions[0]
            raise OipError(404, f"unknown version '{oip.short(version)}' of '{model}', this device runs {here}")
        return served

    def _now(self) -> Served:
        """The served model and its metadata, rebuilt when the agent changes its model. OipError(503) without one."""
        manifest = self._service.manifest
        if manifest is None:
            raise _no_model()
        if self._served is None or self._served.manifest is not manifest:
            self._served = Served(manifest, model_card(manifest))
        return self._served

    def _enabled(self) -> None:
        """Raise OipError(503) in the policy's mode `disabled`."""
        if self._service.status().get("mode") == "disabled":
            raise _disabled()


def _response(records: list[AnswerRecord], request_id: str, served: Served) -> oip.InferResponse:
    """The response tensors and parameters of a batch of answers."""
    outputs = answer_tensors([record.prediction for record in records], served.manifest.labels)
    version = served.card.versions[0]
    return oip.InferResponse(served.card.name, version, request_id, outputs, {**parameters(records)})


def _data_class(given: dict[str, oip.Parameter], default: str) -> str:
    """The data class of a request's samples.

    A misspelt parameter is an error: it may have been meant to keep the sample on the device.
    """
    for key in given:
        if key not in PARAMETERS and key not in _HARMLESS:
            near = difflib.get_close_matches(key, PARAMETERS, 1)
            hint = f"did you mean '{near[0]}'?" if near else f"known are {', '.join(PARAMETERS)}"
            raise OipError(400, f"unknown parameter '{oip.short(key)}', {hint}")
    value = given.get("data_class", default)
    if not isinstance(value, str) or (value and not _DATA_CLASS.fullmatch(value)):
        raise OipError(400, "data_class is a word of at most 64 letters, digits, '_', '.', '-'")
    return value


def _subject(given: dict[str, oip.Parameter]) -> str:
    """The data subject that a request's samples are about; "" for none."""
    value = given.get("subject", "")
    if not isinstance(value, str) or len(value) > MAX_CHARS:
        raise OipError(400, f"subject is a text of at most {MAX_CHARS} characters")
    return value


def _no_model() -> OipError:
    return OipError(503, "no_model: this device has no model to answer with yet, or its own was revoked")


def _disabled() -> OipError:
    return OipError(503, "disabled: the policy's mode answers nothing")


def _json(data: dict[str, Any]) -> web.Response:
    return web.Response(body=msgspec.json.encode(data), content_type=oip.JSON)

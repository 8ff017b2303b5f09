"""HTTP routes of the Open Inference Protocol v2 (KServe), as an unmodified `tritonclient[http]` calls them.

Rule: a request is checked as a whole before its first sample is answered, so a batch is never half accepted.
"""

import asyncio
import re
import secrets
from functools import partial
from typing import Any, NamedTuple

import msgspec
from aiohttp import web

from edge_agent.api.service import AnswerService, InferLimits, choose_traceparent, make_parameters
from edge_agent.inference.requests import MAX_SUBJECT_CHARS
from edge_agent.question.records import AnswerRecord, DisabledError, NoModelError, Sample
from models.bundle.manifest import InputSpec, Manifest, is_text_input
from models.runtime.runner import Sample as SampleArray
from models.runtime.runner import SampleError, check_samples
from models.runtime.text import describe_input, parse_samples
from wire.http import oip
from wire.http.answer_tensors import build_answer_tensors, list_answer_outputs
from wire.http.guards import read_body
from wire.http.oip import OipError

SERVER = "skerry-agent"
PLATFORM = "skerry_edge"
PARAMETERS = ("data_class", "subject")
_HARMLESS = frozenset({"priority", "timeout", *oip.SEQUENCE_PARAMETERS})  # what they ask for is refused below
_DATA_CLASS = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


def make_model_card(manifest: Manifest) -> oip.ModelMetadata:
    """Metadata of the one model that an agent serves: its input, and the outputs that every answer has."""
    spec = manifest.input
    outputs = list_answer_outputs(manifest.labels, manifest.outputs, text=is_text_input(spec))
    return oip.ModelMetadata(manifest.name, (str(manifest.version),), PLATFORM, (describe_input(spec),), outputs)


class ServedModel(NamedTuple):
    """The model that answers, and its metadata."""

    manifest: Manifest
    card: oip.ModelMetadata


class OipRoutes:
    """Routes that serve the agent's model under `/v2`. `version`: of the server, as its metadata says."""

    def __init__(self, service: AnswerService, version: str, limits: InferLimits) -> None:
        self._service = service
        self._served: ServedModel | None = None
        self._server_version = version
        self._limits = limits

    def route_table(self) -> list[web.RouteDef]:
        """All routes with their handlers; each model route with and without a version."""
        both = ("/v2/models/{model}", "/v2/models/{model}/versions/{version}")
        return [
            web.get("/v2", self.get_server),
            web.get("/v2/health/live", self.get_live),
            web.get("/v2/health/ready", self.get_ready),
            *(web.get(path, self.get_model) for path in both),
            *(web.get(f"{path}/ready", self.get_model_ready) for path in both),
            *(web.post(f"{path}/infer", self.post_infer) for path in both),
        ]

    async def get_server(self, _: web.Request) -> web.Response:
        """`GET /v2`: name, version and extensions of the server."""
        return _json_response(oip.build_server_metadata(SERVER, self._server_version))

    async def get_live(self, _: web.Request) -> web.Response:
        """`GET /v2/health/live`: the event loop runs."""
        return _json_response({"live": True})

    async def get_ready(self, _: web.Request) -> web.Response:
        """`GET /v2/health/ready`: 503 without a model, and in mode `disabled`."""
        self._current_model()
        self._require_enabled()
        return _json_response({"ready": True})

    async def get_model(self, request: web.Request) -> web.Response:
        """`GET /v2/models/{model}`: the model's inputs, outputs and versions."""
        return _json_response(oip.build_model_metadata(self._require_served(request).card))

    async def get_model_ready(self, request: web.Request) -> web.Response:
        """`GET /v2/models/{model}/ready`: the model is served, and the policy's mode lets it answer."""
        served = self._require_served(request)
        self._require_enabled()
        return _json_response({"name": served.card.name, "ready": True})

    async def post_infer(self, request: web.Request) -> web.Response:
        """`POST /v2/models/{model}/infer`: one answer for each sample of the batch.

        Parameters: `data_class`, and `subject`: the data subject that the samples are about. 400 for a request that
        does not fit the model, 503 without a model or in mode `disabled`.
        """
        served = self._require_served(request)
        body = await read_body(request, self._limits.max_body_bytes)
        asked = oip.parse_infer_request(body, request.headers.get(oip.HEADER_LENGTH))
        samples = self._parse_samples(asked, request, served)
        try:
            records = await asyncio.gather(*(self._service.infer(sample) for sample in samples))
        except SampleError as error:
            raise OipError(400, str(error)) from None
        except NoModelError:
            raise _no_model_error() from None
        except DisabledError:
            raise _disabled_error() from None
        reply = oip.encode_infer_response(_make_response(records, asked.id, served), asked)
        return web.Response(body=reply.body, headers=reply.headers())

    def _parse_samples(self, asked: oip.InferRequest, request: web.Request, served: ServedModel) -> list[Sample]:
        """The samples of a request, with data class, trace and subject. OipError(400) if one does not fit the model."""
        data_class = _parse_data_class(asked.parameters, self._limits.data_class)
        parse = partial(_parse_batch, asked, self._limits.max_batch)
        try:
            batch = parse(served.manifest.input)
        except SampleError as error:
            self._service.on_sample_refused(parse)
            raise OipError(400, str(error)) from None
        oip.validate_wanted_outputs(asked, [spec.name for spec in served.card.outputs])
        trace = choose_traceparent(request.headers, secrets.token_hex(16))
        subject = _parse_subject(asked.parameters)
        return [Sample(x, data_class, trace, subject) for x in batch]

    def _require_served(self, request: web.Request) -> ServedModel:
        """The model that answers now, if it is the one that the request names; else 404."""
        served = self._current_model()
        model, version = request.match_info["model"], request.match_info.get("version")
        if model != served.card.name:
            raise OipError(404, f"unknown model '{oip.shorten_name(model)}', this device serves '{served.card.name}'")
        if version is not None and version not in served.card.versions:
            here = served.card.versions[0]
            raise OipError(404, f"unknown version '{oip.shorten_name(version)}' of '{model}', this device runs {here}")
        return served

    def _current_model(self) -> ServedModel:
        """The served model and its metadata, rebuilt when the agent changes its model. OipError(503) without one."""
        manifest = self._service.manifest
        if manifest is None:
            raise _no_model_error()
        if self._served is None or self._served.manifest is not manifest:
            self._served = ServedModel(manifest, make_model_card(manifest))
        return self._served

    def _require_enabled(self) -> None:
        """Raise OipError(503) in the policy's mode `disabled`."""
        if self._service.status().get("mode") == "disabled":
            raise _disabled_error()


def _parse_batch(asked: oip.InferRequest, max_batch: int, spec: InputSpec) -> SampleArray:
    """The samples of a request for this input. SampleError if they do not fit it."""
    try:
        batch = parse_samples(asked, spec, max_batch)
    except OipError as error:
        raise SampleError(str(error)) from None
    check_samples(batch, spec)
    return batch


def _make_response(records: list[AnswerRecord], request_id: str, served: ServedModel) -> oip.InferResponse:
    """The response tensors and parameters of a batch of answers."""
    text = is_text_input(served.manifest.input)
    outputs = build_answer_tensors([record.prediction for record in records], served.manifest.labels, text=text)
    version = served.card.versions[0]
    return oip.InferResponse(served.card.name, version, request_id, outputs, {**make_parameters(records)})


def _parse_data_class(given: dict[str, oip.OipParameter], default: str) -> str:
    """The data class of a request's samples.

    A misspelt parameter is an error: it may have been meant to keep the sample on the device.
    """
    for key in given:
        if key not in PARAMETERS and key not in _HARMLESS:
            import difflib  # noqa: PLC0415 - for an error alone

            near = difflib.get_close_matches(key, PARAMETERS, 1)
            hint = f"did you mean '{near[0]}'?" if near else f"known are {', '.join(PARAMETERS)}"
            raise OipError(400, f"unknown parameter '{oip.shorten_name(key)}', {hint}")
    oip.refuse_sequences(given)
    if given.get("timeout"):
        line = (
            "parameter 'timeout' is not offered here: the policy's mode and its budget_s say how long an answer takes"
        )
        raise OipError(400, line)
    value = given.get("data_class", default)
    if not isinstance(value, str) or (value and not _DATA_CLASS.fullmatch(value)):
        raise OipError(400, "data_class is a word of at most 64 letters, digits, '_', '.', '-'")
    return value


def _parse_subject(given: dict[str, oip.OipParameter]) -> str:
    """The data subject that a request's samples are about; "" for none."""
    value = given.get("subject", "")
    if not isinstance(value, str) or len(value) > MAX_SUBJECT_CHARS:
        raise OipError(400, f"subject is a text of at most {MAX_SUBJECT_CHARS} characters")
    return value


def _no_model_error() -> OipError:
    return OipError(503, "no_model: this device has no model to answer with yet, or its own was revoked")


def _disabled_error() -> OipError:
    return OipError(503, "disabled: the policy's mode answers nothing")


def _json_response(data: dict[str, Any]) -> web.Response:
    return web.Response(body=msgspec.json.encode(data), content_type=oip.JSON_TYPE)

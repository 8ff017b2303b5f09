"""Routes of policies: those that this hub serves, in words; what a new document would change; and its publication.

Rule: a document is compared with the very policy that devices obey now, layers and all, by the code of
`skerry policy diff`; it is published as `skerry policy publish` does, and only where this hub holds the key for it.
"""

import asyncio
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
from aiohttp import web

from cloud_hub.api.interface import ApiContext
from cloud_hub.api.routing import Route, answer_json, parse_json
from cloud_hub.registry.access import Scope
from models.signing.request import RequestError
from policies.analysis.cases import TooManyCasesError
from policies.analysis.check import PolicyFinding, check_documents
from policies.analysis.diff import PolicyChange, diff_policies
from policies.analysis.summary import summarise_policy
from policies.language.document import parse_policy
from policies.model.composition import compose_layers
from policies.model.policy import Policy, PolicyError
from wire.http.guards import read_body
from wire.http.oip import OipError
from wire.process.exit_codes import ExitError

POLICIES_PATH = "/v1/admin/policies"
MAX_DOCUMENT_BYTES = 256 * 1024
BODY_S = 10.0
DAY_MS = 86_400_000
MAX_CHANGES = 500


class PolicyRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of a comparison and of a publication. `document`: a policy document (TOML)."""

    document: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_DOCUMENT_BYTES)]


class PolicyComparison(msgspec.Struct, frozen=True):
    """What a document would change. `before`: hash of the policy that it takes the place of, "" for none.

    `error`: why it is no policy or was not compared, "" if it was. `changes`: each with a case in which it is so;
    `findings`: of the linter; `words`: the new policy in sentences.
    """

    error: str = ""
    name: str = ""
    version: int = 0
    before: str = ""
    words: list[str] = []
    findings: list[PolicyFinding] = []
    changes: list[PolicyChange] = []


class PolicyRoutes:
    """The routes."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        """Return the routes of this group."""
        shows, compares = "The policies that this hub serves, in words", "What a policy document would change"
        publishes = "Publish a policy document to the devices"
        return [
            Route("GET", POLICIES_PATH, self.list_policies, shows, scope=Scope.READ),
            Route(
                "POST", POLICIES_PATH + "/diff", self.compare, compares, scope=Scope.READ, takes=PolicyRequest,
            ),
            Route(
                "POST", POLICIES_PATH, self.publish, publishes, scope=Scope.OPERATE, takes=PolicyRequest, status=201,
            ),
        ]  # fmt: skip

    async def list_policies(self, _request: web.Request) -> web.Response:
        """Answer with the policies that this hub serves and has in full."""
        return answer_json({"policies": [describe_policy(policy) for policy in self._context.hub.policies]})

    async def compare(self, request: web.Request) -> web.Response:
        """Answer with what a document would change: 200, also with `error`: what is wrong with it."""
        document = await read_document(request)
        return answer_json(await compare_document(self._context, document))

    async def publish(self, request: web.Request) -> web.Response:
        """Publish a document: 201 with its path and version.

        422 says what is wrong with it, 409 why it may not be published, or that its key is not at this hub.
        """
        document = await read_document(request)
        publish = self._context.publish_policy
        if publish is None:
            raise OipError(409, "this hub has no update repository: docs/trust.md, the first keys")
        try:
            published = await asyncio.to_thread(publish, document.encode())
        except PolicyError as error:
            raise OipError(422, str(error)) from None
        except (RequestError, ExitError) as error:
            raise OipError(409, str(error)) from None
        if published.request is not None:
            raise OipError(409, "its key lies elsewhere: `skerry policy publish FILE` writes a request to sign there")
        facts = {"path": published.path, "version": published.version, "new": published.new}
        return answer_json(facts, 201)


def describe_policy(policy: Policy) -> dict[str, Any]:
    """Return a policy as the API shows it: what it is made of, and what may leave under it, in sentences."""
    layers = [{"layer": each.layer, "name": each.name, "version": each.version} for each in policy.layers]
    return {
        "hash": policy.hash,
        "name": policy.name,
        "version": policy.version,
        "expires": policy.expires,
        "layers": layers,
        "words": summarise_policy(policy),
    }


async def compare_document(context: ApiContext, document: str) -> PolicyComparison:
    """Compare a document with what is served now."""
    day, served = context.now_ms() // DAY_MS, context.hub.policies
    return await asyncio.to_thread(_compare, served, document, day)


def _compare(served: tuple[Policy, ...], document: str, day: int) -> PolicyComparison:
    try:
        parsed = parse_policy(document)
        alone = parsed.compile()
        before = find_replaced(served, alone)
        after = _put_in_place(before, alone) if before else alone
        changes = diff_policies(before, after) if before else ()
    except PolicyError as error:
        return PolicyComparison(error=str(error))
    except TooManyCasesError as error:
        return PolicyComparison(error=f"not compared: {error}")
    findings = list(check_documents([parsed], day))
    if before is not None and alone.version <= _version_of(before, alone):
        words = f"version {alone.version} is not above the one served, {_version_of(before, alone)}: devices ignore it"
        findings.insert(0, PolicyFinding("error", alone.name, words))
    return PolicyComparison(
        name=alone.name,
        version=alone.version,
        before=before.hash if before else "",
        words=summarise_policy(after),
        findings=findings,
        changes=list(changes[:MAX_CHANGES]),
    )


def find_replaced(served: tuple[Policy, ...], alone: Policy) -> Policy | None:
    """Return the policy served now that has a layer of this name, the first served; None if there is none."""
    name = alone.layers[0].name
    return next((each for each in served if any(part.name == name for part in each.layers)), None)


def _put_in_place(before: Policy, alone: Policy) -> Policy:
    """Return a policy with one layer replaced by a document's."""
    new = alone.layers[0]
    return compose_layers(tuple(new if part.name == new.name else part for part in before.layers))


def _version_of(before: Policy, alone: Policy) -> int:
    return next(part.version for part in before.layers if part.name == alone.layers[0].name)


async def read_document(request: web.Request) -> str:
    """Return the document of a request's body. OipError 400, 408 or 413."""
    body = await read_body(request, 2 * MAX_DOCUMENT_BYTES, BODY_S)
    return parse_json(body, PolicyRequest).document


def days_left(policy: Policy, now_ms: int) -> int:
    """Return the days on which anything may still leave after today; negative: the policy has expired."""
    return policy.expires_day - datetime.fromtimestamp(now_ms / 1000, UTC).toordinal() + _EPOCH_ORDINAL


_EPOCH_ORDINAL = datetime(1970, 1, 1, tzinfo=UTC).toordinal()

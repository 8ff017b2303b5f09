"""Estimates the tokens of a prompt before an engine counts them, and of an answer that no engine counted. Pure.

Rule: a tenant's estimate learns from that tenant's answers alone, so that no tenant can make what another asks for look
larger or smaller than it is. Rule: bytes of pictures, recordings and files are no text: each of them counts as many
tokens as those before it took.
"""

import math
from collections import OrderedDict

import msgspec

from cloud_hub.llm.requests import LlmRequest

BYTES_PER_TOKEN = 4.0  # of English text in common tokenizers; only a first guess
LEAST_BYTES_PER_TOKEN, MOST_BYTES_PER_TOKEN = 0.5, 12.0  # whatever was learnt
MEDIUM_TOKENS = 1000.0  # of a picture, before one was counted; engines that were seen take 256 to 1,500
MOST_MEDIUM_TOKENS = 50_000.0
MAX_TENANTS = 4096  # that are remembered; the least lately used begins anew
_GUESS_TOKENS = 100.0  # what the first guess weighs: as much as a short prompt
_FADE = 0.99  # what was learnt long ago fades
_MEDIUM_SMOOTHING = 0.2


class TenantEstimate(msgspec.Struct, frozen=True):
    """What was learnt of one tenant's requests: sums of their text's bytes and tokens, and the tokens of a medium.

    `made_tokens`, `made_s`: sums over the answers in one piece, each of its tokens and of the time it took.
    """

    text_bytes: float = BYTES_PER_TOKEN * _GUESS_TOKENS
    text_tokens: float = _GUESS_TOKENS
    medium_tokens: float = MEDIUM_TOKENS
    made_tokens: float = 0.0
    made_s: float = 0.0

    def convert_bytes(self, size_bytes: float) -> float:
        """Return how many tokens so many bytes of text are."""
        per_token = self.text_bytes / self.text_tokens
        return size_bytes / min(MOST_BYTES_PER_TOKEN, max(LEAST_BYTES_PER_TOKEN, per_token))

    def learn(self, request: LlmRequest, prompt_tokens: int) -> "TenantEstimate":
        """Return the estimate after a request whose prompt had so many tokens."""
        size = request.size
        if size.media:
            text = self.convert_bytes(size.text_bytes)
            each = min(MOST_MEDIUM_TOKENS, max(1.0, (prompt_tokens - text) / size.media))
            found = self.medium_tokens + _MEDIUM_SMOOTHING * (each - self.medium_tokens)
            return msgspec.structs.replace(self, medium_tokens=found)
        text_bytes, text_tokens = _FADE * self.text_bytes + size.text_bytes, _FADE * self.text_tokens + prompt_tokens
        return msgspec.structs.replace(self, text_bytes=text_bytes, text_tokens=text_tokens)

    def learn_pace(self, tokens: float, elapsed_s: float) -> "TenantEstimate":
        """Return the estimate after an answer of so many tokens."""
        made = _FADE * self.made_tokens + tokens, _FADE * self.made_s + elapsed_s
        return msgspec.structs.replace(self, made_tokens=made[0], made_s=made[1])


class TokenEstimate:
    """Estimates for the tenants of one model."""

    def __init__(self) -> None:
        self._tenants: OrderedDict[str, TenantEstimate] = OrderedDict()

    def _find(self, tenant: str) -> TenantEstimate:
        return self._tenants.get(tenant) or TenantEstimate()

    def estimate(self, request: LlmRequest, tenant: str) -> int:
        """Return the estimated number of prompt tokens, at least 1."""
        if request.size.tokens:
            return request.size.tokens
        known = self._find(tenant)
        media = request.size.media * known.medium_tokens
        return max(1, math.ceil(known.convert_bytes(request.size.text_bytes) + media))

    def convert_bytes(self, size_bytes: int, tenant: str) -> float:
        """Return how many tokens so many bytes of a tenant's prompts are."""
        return self._find(tenant).convert_bytes(size_bytes)

    def learn(self, request: LlmRequest, tenant: str, prompt_tokens: int) -> None:
        """Learn from an answered request of a tenant."""
        if request.size.tokens or prompt_tokens <= 0:
            return
        self._remember(tenant, self._find(tenant).learn(request, prompt_tokens))

    def estimate_answer(self, tenant: str, elapsed_s: float) -> int:
        """Return the tokens of an answer that are generated in so many seconds, 0 before any answer of the tenant."""
        known = self._find(tenant)
        return round(elapsed_s * known.made_tokens / known.made_s) if known.made_s > 0 else 0

    def learn_pace(self, tenant: str, tokens: float, elapsed_s: float) -> None:
        """Learn from an answer in one piece: the time of a stream is its caller's too."""
        self._remember(tenant, self._find(tenant).learn_pace(tokens, elapsed_s))

    def _remember(self, tenant: str, estimate: TenantEstimate) -> None:
        self._tenants[tenant] = estimate
        self._tenants.move_to_end(tenant)
        if len(self._tenants) > MAX_TENANTS:
            self._tenants.popitem(last=False)

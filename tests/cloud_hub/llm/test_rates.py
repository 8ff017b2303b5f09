"""Rates in tokens of the tenants of language models, at hubs that share them."""

import pytest

from cloud_hub.llm.errors import LlmError
from cloud_hub.llm.service import LanguageModels
from cloud_hub.llm.settings import LlmSettings
from cloud_hub.llm.token_queue import QueueTicket


async def test_a_tenants_tokens_are_divided_by_the_hubs_that_share_them():
    models = LanguageModels([LlmSettings(name="chat", tenant_tokens_per_s=1.0, tenant_burst_tokens=600.0)])
    queue = models.models[0].queue
    models.divide_rates(3)
    for tokens in (150, 50):
        queue._admit(QueueTicket("ward", "", tokens, None))
    with pytest.raises(LlmError) as refused:
        queue._admit(QueueTicket("ward", "", 10, None))
    assert refused.value.status == 429
    assert refused.value.retry_after_s == pytest.approx(30.0, abs=1.0)  # a third of a token each second
    queue._admit(QueueTicket("other", "", 10, None))

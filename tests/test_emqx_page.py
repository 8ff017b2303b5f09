"""The rules for EMQX name exactly the topics that the code knows."""

import re

from cloud_hub.runtime.broker import MAX_PACKET_BYTES
from tests import ROOT
from wire.protocol.topics import TopicChannel, list_hub_filters

PAGE = (ROOT / "docs" / "emqx.md").read_text(encoding="utf-8")
RULES = {
    match[1]: set(re.findall(r'"([^"]+)"', match[2])) for match in re.finditer(r"\{allow, (.+?), \[(.+)\]\}\.", PAGE)
}


def named(start: str, who: str) -> set[str]:
    return {f"v1/+/{who}/{channel}" for channel in TopicChannel if channel.startswith(start)}


def test_the_page_grants_what_the_code_uses_and_nothing_else():
    assert {
        '{username, "hub"}, subscribe': set(list_hub_filters()),
        '{username, "hub"}, publish': named("down/", "+"),
        "all, publish": named("up/", "${username}"),
        "all, subscribe": named("down/", "${username}"),
    } == RULES
    assert PAGE.rstrip().count("{deny, all}.") == 1


def test_the_page_has_the_products_packet_limit():
    assert f"max_packet_size = {MAX_PACKET_BYTES}" in PAGE

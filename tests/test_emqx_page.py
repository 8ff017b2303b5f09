"""The rules for EMQX name exactly the topics that the code knows."""

import re

from cloud_hub.runtime.broker import MAX_PACKET_BYTES
from tests import ROOT
from wire.protocol.topics import HUB_NAMES, TopicChannel, list_hub_filters

PAGE = (ROOT / "docs" / "emqx.md").read_text(encoding="utf-8")
RULES = {
    match[1]: set(re.findall(r'"([^"]+)"', match[2])) for match in re.finditer(r"\{allow, (.+?), \[(.+)\]\}\.", PAGE)
}
HUBS = '{username, {re, "^hub(-([2-9]|1[0-6]))?$"}}'


def named(start: str, who: str) -> set[str]:
    return {f"v1/+/{who}/{channel}" for channel in TopicChannel if channel.startswith(start)}


def test_the_page_grants_what_the_code_uses_and_nothing_else():
    assert {
        f"{HUBS}, subscribe": set(list_hub_filters()),
        f"{HUBS}, publish": named("down/", "+"),
        "all, publish": named("up/", "${username}"),
        "all, subscribe": named("down/", "${username}"),
    } == RULES
    assert PAGE.rstrip().count("{deny, all}.") == 1


def test_the_page_knows_every_hub_of_a_region_and_nobody_else():
    (pattern,) = re.findall(r'"(.*)"', HUBS)
    names = ["hub", *(f"hub-{number}" for number in range(30)), "hubs", "hub-02", "hub--2", "demo--hub"]
    assert [name for name in names if re.match(pattern, name)] == [*HUB_NAMES]


def test_the_page_has_the_products_packet_limit():
    assert f"max_packet_size = {MAX_PACKET_BYTES}" in PAGE

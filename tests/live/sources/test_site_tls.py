"""A site's broker over TLS, with a real Mosquitto that asks for client certificates."""

from pathlib import Path

import msgspec
import pytest

from cloud_hub.security.authority import utc_now
from edge_agent.system.site_broker import BrokerSection
from edge_agent.system.site_connection import connect_broker
from tests.live.doubles.own_broker import OwnBroker
from wire.transport.base import LinkLostError

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]


async def test_the_brokers_authority_is_checked_and_a_client_certificate_is_shown(tmp_path: Path):
    with OwnBroker(tmp_path) as broker:
        await (await broker.connect("tap")).close()  # it listens
        pair = broker.ground.authorities.ensure_client("tap", utc_now())
        url, ca = f"mqtts://127.0.0.1:{broker.port}", str(broker.ground.ca_file)
        named = BrokerSection(broker=url, tls_ca=ca, tls_cert=str(pair.certificate), tls_key=str(pair.key))
        transport = await connect_broker(named, "skerry-test")
        await transport.subscribe(("plant/#",))
        await transport.close()
        wrong = {
            "CERTIFICATE_VERIFY_FAILED": msgspec.structs.replace(named, tls_ca=""),  # the system's authorities
            r"violation of protocol|refused|reset": BrokerSection(
                broker=url, tls_ca=ca
            ),  # without a certificate of ours
            "No such file": msgspec.structs.replace(named, tls_ca=str(tmp_path / "nothing.pem")),
        }
        for line, section in wrong.items():
            with pytest.raises(LinkLostError, match=line):
                await connect_broker(section, "skerry-test")

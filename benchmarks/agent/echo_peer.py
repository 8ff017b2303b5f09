"""Child process of the round trip: answers every question with as many bytes as a verdict has.

No cryptography, no store, no model. Arguments: port, CA, certificate, key, bytes of a reply.
"""

import asyncio
import sys

from benchmarks.harness.rig import hub_context
from wire.protocol.topics import TopicChannel, build_topic, list_hub_filters, parse_up_topic
from wire.transport.base import LinkLostError
from wire.transport.mqtt import MqttTransport


async def serve_echo(port: int, files: tuple[str, str, str], reply_bytes: int) -> None:
    link = await MqttTransport.connect("127.0.0.1", port, "hub", hub_context(*files))
    await link.subscribe(list_hub_filters())
    print("ready", flush=True)
    reply = bytes(reply_bytes)
    try:
        while True:
            for message in await link.receive():
                device, _ = parse_up_topic(message.topic)
                link.post(build_topic(device, TopicChannel.REPLY), reply)
    except LinkLostError:
        return


if __name__ == "__main__":
    _, port, ca, certificate, key, size = sys.argv
    asyncio.run(serve_echo(int(port), (ca, certificate, key), int(size)))

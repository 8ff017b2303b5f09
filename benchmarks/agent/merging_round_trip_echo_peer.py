"""Child process: answers every question with as many bytes as a verdict has. No crypto, no store, no model."""

import asyncio
import sys

from benchmarks.harness.rig import hub_context
from wire.protocol.topics import Channel, hub_filters, parse_up, topic
from wire.transport.base import LinkLostError
from wire.transport.mqtt import MqttTransport


async def serve(port: int, files: tuple[str, str, str], reply_bytes: int) -> None:
    link = await MqttTransport.connect("127.0.0.1", port, "hub", hub_context(*files))
    await link.subscribe(hub_filters())
    print("ready", flush=True)
    reply = bytes(reply_bytes)
    try:
        while True:
            for message in await link.receive():
                device, _ = parse_up(message.topic)
                link.post(topic(device, Channel.REPLY), reply)
    except LinkLostError:
        return


if __name__ == "__main__":
    _, port, ca, certificate, key, size = sys.argv
    asyncio.run(serve(int(port), (ca, certificate, key), int(size)))

"""What the hub says over the link: signed notes, verdicts sealed before, hints, orders; and heads to the ledger.

Rule: nothing is queued for a link that is down: what a device did not hear it asks for.
"""

from collections.abc import Callable, Iterable

from cloud_hub import commands as c
from cloud_hub.envelopes import HubEnvelopes, channel_of
from cloud_hub.ledger_clerk import Clerk
from cloud_hub.ledger_log import Received
from cloud_hub.link import Link
from cloud_hub.orders import Notice
from wire.messages import DownNote
from wire.topics import Channel, topic


class Voice:
    """`ledger` keeps the log of the devices' ledger heads, if this hub keeps one."""

    def __init__(self, link: Link, envelopes: HubEnvelopes, now: Callable[[], float]) -> None:
        self.ledger: Clerk | None = None
        self._link = link
        self._envelopes = envelopes
        self._now = now

    def tell(self, device: str, note: DownNote) -> None:
        """Sign a note and send it."""
        frame = self._envelopes.note(device, note, self._now())
        self._link.post(topic(device, channel_of(note)), frame)

    def resend(self, command: c.Resend) -> None:
        self._link.post(topic(command.device, Channel.REPLY), command.frame)

    def hint(self, device: str) -> None:
        """Send an empty message: there is something new in the update repository."""
        self._link.post(topic(device, Channel.DESIRED), b"")

    def announce(self, notice: Notice, devices: Iterable[str]) -> None:
        """Tell these devices now; whoever misses it is told when it next says hello."""
        for device in devices:
            self.tell(device, notice.note())

    def log_heads(self, command: c.Log) -> None:
        if self.ledger is not None:
            self.ledger.put(Received(command.device, command.key, command.heads, int(self._now() * 1000)))

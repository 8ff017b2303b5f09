"""Notes that open a session between a device and its hub, and those that name the frames sealed in it. Pure.

A hub that opens sessions invites a device after its hello. The device offers an X25519 key of one use, the hub accepts
with one of its own; both notes are signed as every note is. See `wire.protocol.sessions` for the keys that follow, and
docs/adr/0050 for why frames of a session are not signed and lists of them are.
"""

import msgspec


class SessionInvite(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="g"):
    """The hub opens sessions for this device: it may offer a key until its connection ends.

    A device of an earlier release refuses the note as unknown, and goes on without sessions.
    """

    epoch: int
    hub: str


class SessionOffer(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="o"):
    """Offer of a session, on `up/ask`. `share`: the device's X25519 key of one use, raw 32 bytes.

    `hub`: whom it is for. `key_id`: of that hub's HPKE key, which takes part in the agreement.
    """

    epoch: int
    hub: str
    key_id: bytes
    share: bytes


class SessionAccept(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="k"):
    """Answer to the offer of `offered`: the session begins, with the hub's X25519 key of one use `share`.

    `ends_ms`: hub time after which the device seals nothing in it.
    """

    epoch: int
    hub: str
    offered: bytes
    share: bytes
    ends_ms: int


class SealedFrameList(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="f"):
    """The questions that a device sealed for one hub, on `up/report`: the device's signature stands for all of them.

    `digests`: SHA-256 of each frame that its ledger recorded for `hub` in the entries above `after` up to `entries`, in
    their order.
    """

    epoch: int
    hub: str
    after: int
    entries: int
    digests: tuple[bytes, ...]


class SealedFrameReceipt(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="e"):
    """Receipt of a `SealedFrameList`: all up to the entry `entries` is stored durably."""

    epoch: int
    hub: str
    entries: int

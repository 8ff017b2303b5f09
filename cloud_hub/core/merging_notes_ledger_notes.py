"""Is a ledger head what a device may say of itself? Numbers in range, lengths right, its own signature. Pure."""

from cloud_hub.core.verification import BIGGEST
from cloud_hub.registry.merging_device_states_devices import Device
from wire.ledger.chain import Head, is_signed
from wire.ledger.merkle import HASH_BYTES
from wire.protocol.messages import Heads

MAX_TOTALS = 1000
MAX_ACCOUNT_CHARS = 128


def is_sound(device: Device, key: bytes, heads: Heads) -> bool:
    """`key`: the device's raw Ed25519 key. What is not sound is dropped: nobody else could have signed the note."""
    numbers = (heads.epoch, heads.entries, heads.at_ms, heads.known)
    if not all(0 <= number <= BIGGEST for number in numbers) or len(heads.head) != HASH_BYTES:
        return False
    if len(heads.spend) > MAX_TOTALS or not all(_is_total(*total) for total in heads.spend):
        return False
    head = Head(device.id, heads.epoch, heads.entries, heads.at_ms, heads.head)
    return is_signed(head, heads.signature, key)


def _is_total(account: str, period: int, amount: int) -> bool:
    return len(account) <= MAX_ACCOUNT_CHARS and 0 <= period <= BIGGEST and 0 <= amount <= BIGGEST

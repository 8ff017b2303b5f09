"""Health of a device in one word, from what the hub knows of it. Pure.

Rule: the worst that is true is said; a device that this hub has not heard since its own start is not called offline.
"""

from enum import StrEnum

from cloud_hub.registry.device_states import DeviceState, StateReason
from cloud_hub.registry.presence import DeviceActivity
from cloud_hub.registry.registry import EnrolledDevice

DAY_MS = 86_400_000
SILENT_MS = DAY_MS  # an agent that is connected signs the head of its ledger every six hours at least
ENDING_MS = DAY_MS  # an agent renews its certificate with a third of its seven days left


class DeviceHealth(StrEnum):
    """Health of a device, the worst first."""

    CLONE_SUSPECT = "clone_suspect"  # two machines use its keys
    LEDGER_FLAW = "ledger_flaw"  # its ledger's signed heads contradict each other
    CERTIFICATE_EXPIRED = "certificate_expired"
    SILENT = "silent"  # nothing was heard of it for a day
    OFFLINE = "offline"
    CERTIFICATE_ENDING = "certificate_ending"  # within a day: it should have renewed it
    SUSPENDED = "suspended"
    RETIRING = "retiring"
    UNHEARD = "unheard"  # not since this hub was started
    ONLINE = "online"
    RETIRED = "retired"
    REVOKED = "revoked"


URGENT = frozenset({DeviceHealth.CLONE_SUSPECT, DeviceHealth.LEDGER_FLAW, DeviceHealth.CERTIFICATE_EXPIRED})
WORRYING = frozenset(
    {DeviceHealth.SILENT, DeviceHealth.OFFLINE, DeviceHealth.CERTIFICATE_ENDING, DeviceHealth.SUSPENDED}
)
_BY_STATE = {
    DeviceState.SUSPENDED: DeviceHealth.SUSPENDED,
    DeviceState.RETIRING: DeviceHealth.RETIRING,
    DeviceState.RETIRED: DeviceHealth.RETIRED,
    DeviceState.REVOKED: DeviceHealth.REVOKED,
}


def judge_health(device: EnrolledDevice, activity: DeviceActivity, now_ms: int, *, flawed: bool) -> DeviceHealth:
    """Judge a device. `flawed`: its ledger's heads contradict each other; `now_ms`: hub time."""
    if device.state is DeviceState.SUSPENDED and device.why == StateReason.CLONE_SUSPECT:
        return DeviceHealth.CLONE_SUSPECT
    if flawed and not device.gone:
        return DeviceHealth.LEDGER_FLAW
    if device.state in _BY_STATE:
        return _BY_STATE[device.state]
    if device.certificate_ends_ms <= now_ms:
        return DeviceHealth.CERTIFICATE_EXPIRED
    return _judge_presence(device, activity, now_ms)


def _judge_presence(device: EnrolledDevice, activity: DeviceActivity, now_ms: int) -> DeviceHealth:
    if not activity.online and max(activity.last_seen_ms, device.enrolled_ms) < now_ms - SILENT_MS:
        return DeviceHealth.SILENT
    if activity.online is False:
        return DeviceHealth.OFFLINE
    if device.certificate_ends_ms <= now_ms + ENDING_MS:
        return DeviceHealth.CERTIFICATE_ENDING
    return DeviceHealth.ONLINE if activity.online else DeviceHealth.UNHEARD

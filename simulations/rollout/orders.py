"""Assignments of a simulated rollout as signed frames, and the copies of them that the broker's owner keeps.

Rule: the hub's own envelopes sign and the device's own verifier opens, both with real keys; nothing else of a simulated
run is signed. All devices share one signing key of their present enrolment and one of an earlier enrolment.
"""

from collections import Counter
from random import Random

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from cloud_hub.registry.device_states import Device
from cloud_hub.rollout.dispatch import build_assignment, next_counter
from cloud_hub.rollout.types import DeviceGoal, RolloutPlan, RolloutRow
from cloud_hub.security.envelopes import HubEnvelopes
from cloud_hub.security.hub_keys import HubKeys
from edge_agent.identity.identity import HubKeys as PinnedHub
from edge_agent.identity.identity import Identity
from edge_agent.question.seal import Envelopes, InboundVerifier, PendingVerdicts
from edge_agent.system.clock import HubClock
from policies.rollout_rules.plan import RolloutRules
from simulations.kernel.kernel import Kernel
from simulations.nodes.registry import EnrolledDevice
from wire.protocol.rollout import Assignment
from wire.protocol.sealing import compute_key_id

COUNTER_BEFORE = 2  # of each device's newest assignment before the run: it was called back from the candidate
_BEFORE_S = 86_400.0  # so long before the run began all that was said
_HUB = Ed25519PrivateKey.from_private_bytes(b"\x01" * 32)
_PRESENT = Ed25519PrivateKey.from_private_bytes(b"\x02" * 32)
_EARLIER = Ed25519PrivateKey.from_private_bytes(b"\x03" * 32)
_HPKE = X25519PrivateKey.from_private_bytes(b"\x04" * 32)


class SignedOrders:
    """Signs assignments for devices, opens them as the devices do, and keeps each frame.

    `verifier`: class of the devices' verifier; `zero_s`: hub time when the run begins. `counts`: messages that were
    refused, by reason.
    """

    def __init__(self, kernel: Kernel, zero_s: float, verifier: type[InboundVerifier] = InboundVerifier) -> None:
        self.counts: Counter[str] = Counter()
        self._kernel = kernel
        self._zero_s = zero_s
        self._verifier = verifier
        hpke = _HPKE.public_key().public_bytes_raw()
        self._hub = HubEnvelopes(HubKeys({compute_key_id(hpke): _HPKE}, compute_key_id(hpke), _HUB))
        self._pinned = PinnedHub("hub", "", hpke, _HUB.public_key().public_bytes_raw())
        self._verifiers: dict[str, InboundVerifier] = {}
        self._kept: dict[str, list[bytes]] = {}

    def sign(self, device: str, assignment: Assignment) -> bytes:
        """Make the frame of an assignment for a device as it is enrolled now; the broker's owner keeps a copy."""
        frame = self._sign_for(device, assignment, self._zero_s + self._kernel.now, _PRESENT)
        self._kept.setdefault(device, []).append(frame)
        return frame

    def open(self, device: str, frame: bytes) -> Assignment | None:
        """The assignment in a frame as the device reads it; None if it refuses the frame, which is counted."""
        if device not in self._verifiers:
            self._verifiers[device] = self._make_verifier(device)
        found = self._verifiers[device].open_order(frame)
        return found if isinstance(found, Assignment) else None

    def shuffle_copies(self, device: str, plan: RolloutPlan, rules: RolloutRules, dice: Random) -> list[bytes]:
        """Every assignment that a device was ever sent, in random order: of before the run and of this rollout.

        Before the run it was assigned the candidate, allowed to keep it, and called back; and assigned the candidate
        in an earlier enrolment, under a higher counter than it has accepted in this one.
        """
        at_s = self._zero_s - _BEFORE_S
        before = (
            (DeviceGoal.CANDIDATE, COUNTER_BEFORE - 1, _PRESENT),
            (DeviceGoal.WITHDRAWN, COUNTER_BEFORE, _PRESENT),
            (DeviceGoal.CANDIDATE, next_counter(0, int(at_s * 1000)), _EARLIER),
        )
        frames = list(self._kept.get(device, ()))
        for goal, counter, key in before:
            row = RolloutRow(device, 0, goal=goal, counter=counter, told_ms=int(at_s * 1000), released=True)
            assignment = build_assignment(plan, rules, row)
            if assignment is not None:
                frames.append(self._sign_for(device, assignment, at_s, key))
        dice.shuffle(frames)
        return frames

    def _sign_for(self, device: str, assignment: Assignment, at_s: float, key: Ed25519PrivateKey) -> bytes:
        receiver: Device = EnrolledDevice(device, signing_key=key.public_key())
        return self._hub.sign_note(device, assignment, at_s, receiver)

    def _make_verifier(self, device: str) -> InboundVerifier:
        zero_ms = int(self._zero_s * 1000)
        clock = HubClock(zero_ms, lambda: self._kernel.now, lambda: zero_ms)
        identity = Identity(device, "", 0, (self._pinned,), zero_ms, _PRESENT, _HPKE, b"")
        return self._verifier(Envelopes(identity), PendingVerdicts(0), clock, self.counts)

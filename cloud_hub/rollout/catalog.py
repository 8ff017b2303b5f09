"""Targets that a rollout may use: published bundles, the version that the fleet runs now, and downgrade permits.

Rule: read anew each time, nothing is decided here; every refusal says which command to type next.
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any

from tuf.api.metadata import TargetFile

from cloud_hub.repository.publish import list_permits
from cloud_hub.repository.repository import Repository
from cloud_hub.rollout.types import BundleTarget, RolloutError, RolloutPlan, RolloutState
from cloud_hub.rollout.view import RolloutView
from models.signing.review import REVOKED_FIELD
from models.signing.roles import MODELS_PREFIX, is_hub_path, model_path, model_role

_ROLLED_OUT = (RolloutState.COMPLETED, RolloutState.COMPLETED_PARTIAL)
ModelUsers = Callable[[str], Mapping[str, int]]  # digits@7 -> devices that use it


class BundleTargets:
    """Looks up rollout targets in the update repository.

    `speaking` returns the devices that use a version now; nobody for a version that the hub does not know.
    """

    def __init__(self, repository: Repository, speaking: ModelUsers, now_ms: Callable[[], int]) -> None:
        self._repository = repository
        self._speaking = speaking
        self._now_ms = now_ms

    def find_target(self, model: str) -> tuple[str, BundleTarget]:
        """Return the family and the bundle of a model such as `digits@8`.

        RolloutError if it is not published, or revoked.
        """
        family, at, version = model.partition("@")
        if not (at and family and version.isdecimal() and version.isascii() and len(version) < 16):
            raise RolloutError("invalid", f"{model!r}: name one version, as in digits@8")
        return family, self._listed_target(family, int(version))

    def find_previous(self, family: str, version: int) -> BundleTarget | None:
        """Return the version that most devices run now, other than `version`; None if no other one was published.

        The newest other one while none was heard: a fleet that asks nothing runs a model all the same.
        """
        known = (each for each in self._list_versions(family) if each != version)
        counted = [(len(self._speaking(f"{family}@{each}")), each) for each in known]
        return self._listed_target(family, max(counted)[1]) if counted else None

    def committed_versions(self, rollouts: Iterable[RolloutView]) -> dict[str, int]:
        """Return the version of each family that a device without a model takes; those of one version are left out.

        What most devices use, of the versions that no rollout has on trial or took back; if nobody uses one, the newest
        of these. `rollouts`: all that are known.
        """
        last = {(view.family, view.target.version): view.state for view in sorted(rollouts, key=lambda v: v.changed_ms)}
        chosen: dict[str, int] = {}
        for role in self._repository.read_state().base:
            family = role.removeprefix(MODELS_PREFIX)
            versions = self._list_versions(family) if role.startswith(MODELS_PREFIX) else []
            sound = [each for each in versions if last.get((family, each), _ROLLED_OUT[0]) in _ROLLED_OUT]
            if len(versions) > 1 and sound:
                chosen[family] = max(sound, key=lambda each: (len(self._speaking(f"{family}@{each}")), each))
        return chosen

    def find_permit(self, family: str, here: int, version: int, devices: Iterable[str] = ()) -> str:
        """Return the path of a permit that lets devices go from version `here` down to `version`.

        `devices`: all that it must cover. RolloutError if none exists.
        """
        wanted = tuple(devices)
        now_ms = self._now_ms()
        for path, permit in list_permits(self._repository, family).items():
            leads = permit.to_version == version and here < permit.from_below and now_ms < permit.expires_ms
            if leads and all(map(permit.covers, wanted)):
                return path
        why = f"devices that run {family}@{here} go down to {version} only under a permit that no hub can sign:"
        raise RolloutError("refused", f"{why} skerry models permit {family} --to {version} --from-below {here + 1}")

    def check_plan(self, plan: RolloutPlan) -> str:
        """Return why a plan's bundles cannot be assigned now, "" if they can. Reads the disk."""
        try:
            for target in (plan.target, plan.back):
                if target is not None and self._listed_target(plan.family, target.version) != target:
                    return f"{target.path} differs from what the repository lists"
            if plan.permit:
                here = plan.back.version if plan.back else 0
                self.find_permit(plan.family, here, plan.target.version, chain.from_iterable(plan.waves))
        except RolloutError as error:
            return str(error)
        return ""

    def _listed_target(self, family: str, version: int) -> BundleTarget:
        path = model_path(family, version)
        info = self._family_targets(family).get(path)
        if info is None:
            raise RolloutError("not_found", f"{family}@{version} is not published: skerry models publish BUNDLE")
        if _read_custom(info).get(REVOKED_FIELD) is True:
            raise RolloutError("refused", f"{family}@{version} is revoked: nobody may run it")
        return BundleTarget(path, version, str(info.hashes["sha256"]))

    def _list_versions(self, family: str) -> list[int]:
        found = (_read_custom(info).get("version") for info in self._family_targets(family).values())
        return sorted(version for version in found if isinstance(version, int))

    def _family_targets(self, family: str) -> dict[str, TargetFile]:
        """Return the bundles that a family's role lists; their hub parts, which no device is given, are left out."""
        try:
            role = self._repository.read_state().base.get(model_role(family))
        except ValueError as error:
            raise RolloutError("invalid", str(error)) from None
        listed = role.signed.targets if role else {}
        return {path: info for path, info in listed.items() if not is_hub_path(path)}


def _read_custom(info: TargetFile) -> dict[str, Any]:
    return info.custom if isinstance(info.custom, dict) else {}

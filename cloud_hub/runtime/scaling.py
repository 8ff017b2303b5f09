"""Section [scaling] of the hub's configuration: models whose replicas follow their load, see docs/scaling.md."""

from typing import Annotated

from pydantic import Field

from cloud_hub.system.config_base import ConfigSection
from policies.serving.scaling import ScalingRules
from wire.process.exit_codes import ExitCode, ExitError

MODEL_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}(@[1-9][0-9]{0,18})?$"
_SCALING = ScalingRules()


class ScaledModelSection(ConfigSection):
    """Section [scaling.models."NAME"] or "NAME@VERSION": limits of its replicas, each explained at `ScalingRules`."""

    floor: Annotated[int, Field(ge=0, le=64)] = _SCALING.floor
    ceiling: Annotated[int, Field(ge=1, le=64)] = _SCALING.ceiling
    busy_share: Annotated[float, Field(gt=0, le=1)] = _SCALING.busy_share
    deadline_s: Annotated[float, Field(gt=0, le=3600)] = _SCALING.deadline_s
    drain_s: Annotated[float, Field(gt=0, le=3600)] = _SCALING.drain_s
    backlog_s: Annotated[float, Field(gt=0, le=7 * 86_400)] = _SCALING.backlog_s
    down_after_s: Annotated[float, Field(gt=0, le=86_400)] = _SCALING.down_after_s
    idle_s: Annotated[float, Field(gt=0, le=7 * 86_400)] = _SCALING.idle_s
    room_items: Annotated[int, Field(ge=0, le=1_000_000)] = _SCALING.room_items
    room_s: Annotated[float, Field(gt=0, le=3600)] = _SCALING.room_s


class ScalingSection(ConfigSection):
    """Section [scaling]: models whose replicas follow their load, see docs/scaling.md.

    `obey`: this hub starts and stops them; false = the number is only told, for who starts them elsewhere.
    """

    obey: bool = True
    models: dict[Annotated[str, Field(pattern=MODEL_NAME)], ScaledModelSection] = Field(default_factory=dict)

    def scaling_rules(self) -> dict[str, ScalingRules]:
        """Return the limits of the models whose replicas follow their load. ExitError(CONFIG) if some contradict."""
        found = {}
        for name, section in self.models.items():
            try:
                found[name] = ScalingRules(**section.model_dump())
            except ValueError as error:
                raise ExitError(ExitCode.CONFIG, f"scaling.models.{name}: {error}") from None
        return found

"""What every source of samples needs of the agent: who answers, in which data class, and how samples are prepared."""

from collections.abc import Callable

import msgspec

from edge_agent.api.service import AnswerService
from edge_agent.question.records import NoModelError
from models.bundle.manifest import InputSpec, Manifest
from models.bundle.preparation import Preparation, complete_preparation, find_difference
from models.runtime.runner import Sample as SampleArray
from models.runtime.runner import SampleError


class PreparationError(SampleError):
    """`[input]` of the configuration and the bundle contradict each other, or neither says how samples are prepared."""


class SampleFeed(msgspec.Struct, frozen=True):
    """The agent that answers the samples, and the data class of samples that name none.

    `configured`: the `[input]` of the agent's configuration, None without one.
    """

    service: AnswerService
    data_class: str
    configured: Preparation | None = None

    @property
    def manifest(self) -> Manifest:
        """Manifest of the model that answers now. NoModelError if there is none."""
        if self.service.manifest is None:
            raise NoModelError
        return self.service.manifest

    @property
    def preparation(self) -> Preparation | None:
        """How raw material becomes a sample of the model that answers now; None where nobody says.

        PreparationError if the configuration and the bundle contradict each other, NoModelError without a model.
        """
        return choose_preparation(self.manifest, self.configured)

    def parse_sample(self, parse: Callable[[InputSpec], SampleArray]) -> SampleArray:
        """Read a sample for the input of the model that answers. SampleError, of which the agent hears, if unfit."""
        try:
            return parse(self.manifest.input)
        except SampleError:
            self.service.on_sample_refused(parse)
            raise


def choose_preparation(manifest: Manifest, configured: Preparation | None) -> Preparation | None:
    """The preparation of a model's samples: its bundle's, else the configuration's; where both say it, they agree.

    PreparationError, one line, if they do not, or if what the configuration makes is not the model's input.
    """
    if configured is None:
        return manifest.preparation
    try:
        made = complete_preparation(configured, manifest.input.shape)
    except ValueError as error:
        raise PreparationError(f"input: {error}") from None
    if manifest.preparation is not None and (differs := find_difference(made, manifest.preparation)):
        raise PreparationError(
            f"input: the configuration and the bundle {manifest.model} differ in {differs}: leave [input] out, the"
            " bundle was made with its own"
        )
    return made

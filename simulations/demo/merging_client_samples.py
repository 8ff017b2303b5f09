"""The digits that a demo feeds: held out of training, some damaged, each with what either model says of it alone."""

import numpy as np

from models.bundle.bundle import Bundle
from models.forge.data.digits import CORRUPTED, corrupt, heldout
from models.runtime.onnx_runner import OnnxRunner
from simulations.demo.merging_client_feed import Digit, hub_labels
from simulations.demo.results import Truth
from simulations.processes import Stage

SEED = 11


async def digits(stage: Stage, bundle: Bundle) -> list[Digit]:
    """The hub is asked for whole samples over its own web API: that is the reference, not the way of the demo."""
    x, y = heldout()
    x = corrupt(x, np.random.default_rng(SEED), CORRUPTED)
    runner = OnnxRunner(bundle)
    edge = [inference.prediction for inference in runner.infer(x)]
    runner.close()
    hub = await hub_labels(stage.session, stage.hub.url if stage.hub else "", bundle.manifest, x)
    return [
        Digit(sample, Truth(int(label), alone.label, hub_label, sample.nbytes), alone.confidence)
        for sample, label, alone, hub_label in zip(x, y, edge, hub, strict=True)
    ]

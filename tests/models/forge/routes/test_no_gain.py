"""Where lossless features are no better than the edge there is no gain to keep a share of: the cheaper code ships."""

import math

import msgspec
import numpy as np
import torch
from torch import nn

from models.forge.data.types import Data, DataPart
from models.forge.routes.frontier import RoutePoint, choose_point
from models.forge.routes.judgement import PathJudge
from models.forge.spec import ForgeSpec
from models.forge.training.code_path import Route
from tests.models.forge.training.test_modules import pieces_of

DEAR = RoutePoint("learned-256", Route.LEARNED, "P2", 256, 772, 0.9, 0.9, 0.88, math.nan, 0.0, 0.0, 0.1, 400)
CHEAP = msgspec.structs.replace(DEAR, name="learned-64", payload_bytes=64, sealed_bytes=580)


def test_of_codes_without_a_gain_the_cheaper_ships():
    assert choose_point([DEAR, CHEAP], ForgeSpec()).name == "learned-64"


def test_a_model_that_is_no_better_than_its_edge_has_no_gain_whatever_its_own_probabilities_say():
    torch.manual_seed(2)
    pieces, whole = pieces_of(), nn.Linear(4, 3)
    x = np.random.default_rng(1).normal(size=(200, 4)).astype(np.float32)
    part = DataPart((x,), np.zeros(200, np.int64))
    probe = PathJudge(whole, Data(part, part, part, ("a", "b", "c")), pieces, 0.25, samples=200, fitted=100)
    edge = probe.edge.argmax(1)
    part = DataPart((x,), edge.astype(np.int64))  # the edge is always right, the given model seldom
    judge = PathJudge(whole, Data(part, part, part, ("a", "b", "c")), pieces, 0.25, samples=200, fitted=100)
    assert math.isnan(judge.recovered(judge.whole))

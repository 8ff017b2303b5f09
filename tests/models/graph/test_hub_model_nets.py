"""Round trips of common architectures through the graph format of a bundle."""

import pytest
import torch

from models.graph.hub_model import decode_graphs, encode_graphs, export_graph
from tests.examples import mark_further
from tests.models.doubles.graph_nets import NETS


@pytest.mark.parametrize("name", mark_further(NETS, ("table",)))
def test_a_net_comes_back_as_what_it_was(name):
    net = NETS[name]
    module = net.module()
    graph, weights = encode_graphs({"whole": export_graph(module, (net.samples(2),))})
    served = decode_graphs(graph, [weights], "whole")
    for count in (1, 3, 7):
        samples = net.samples(count)
        with torch.inference_mode():
            wanted = module(samples)
        assert torch.allclose(served(samples), wanted, atol=1e-5)
    assert not served(samples).requires_grad

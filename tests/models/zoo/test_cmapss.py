"""The turbofan nets of the zoo: what the device's own one costs beside the given one."""

import torch

from models.forge.partition.cuts import trace_model
from models.zoo.cmapss import EdgeTurbofanNet, TurbofanNet


def test_the_devices_own_net_takes_an_eighth_of_the_arithmetic_and_answers_beyond_the_cap_while_it_learns():
    x = torch.randn(2, 60, 15)
    small, large = EdgeTurbofanNet().eval(), TurbofanNet().eval()
    assert small(x).shape == large(x).shape == (2, 1)
    assert trace_model(small, x).macs < trace_model(large, x).macs / 7
    with torch.no_grad():
        list(small.parameters())[-1].fill_(2.0)  # the last layer's bias
    beyond = small(x)
    assert (beyond > 125).any()  # the given net is clamped there, where nothing can be learned
    beyond.sum().backward()
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in small.parameters())

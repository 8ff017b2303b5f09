"""Memory of weights: any type and shape, writable, private to the process and gone with its tensor."""

import pytest
import torch

from models.bundle.manifest import BundleError
from models.graph.weight_memory import allocate_weight

LARGE = (1024, 2049)  # above the size from which pages are large, and no multiple of a page


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.bool])
@pytest.mark.parametrize("shape", [(), (0,), (3, 5), LARGE])
def test_a_weight_of_any_type_and_shape_keeps_what_is_written(dtype, shape):
    weight = allocate_weight("w0", dtype, shape)
    assert (weight.dtype, tuple(weight.shape)) == (dtype, shape)
    assert weight.is_contiguous()
    weight.fill_(1)
    assert bool((weight == 1).all())


def test_a_view_keeps_large_memory_alive():
    weight = allocate_weight("w0", torch.float32, LARGE)
    weight.fill_(2)
    row = weight[-1]
    del weight
    allocate_weight("w0", torch.float32, LARGE).fill_(3)
    assert bool((row == 2).all())


def test_no_memory_for_a_weight_is_one_line():
    with pytest.raises(BundleError, match="no memory for w0, float32"):
        allocate_weight("w0", torch.float32, (2**60,))

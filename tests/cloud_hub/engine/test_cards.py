"""Graphics cards of a machine as its driver tells them, and plans of more cards than there are."""

import sys

import pytest

from cloud_hub.engine import factory
from cloud_hub.engine.base import EngineError
from cloud_hub.engine.devices import find_cards
from cloud_hub.engine.factory import find_devices
from cloud_hub.engine.types import EngineOptions
from policies.serving.capacity import CardMemory
from policies.serving.placement import GIB
from tests.cloud_hub.doubles.nvml import Nvml

CARDS = (CardMemory(0, "card", 24 * GIB, 20 * GIB), CardMemory(1, "card", 24 * GIB, 22 * GIB))


def test_cards_are_those_that_the_driver_names(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", Nvml(CARDS))
    assert find_cards() == CARDS


def test_a_library_without_a_driver_is_a_machine_whose_cards_torch_names(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", Nvml(CARDS, broken=True))
    monkeypatch.setattr("cloud_hub.engine.devices.find_usable_cards", lambda: CARDS[:1])
    assert find_cards() == CARDS[:1]


def test_a_hub_with_fewer_cards_than_its_plan_takes_is_refused_in_one_line(monkeypatch):
    monkeypatch.setattr(factory, "find_usable_cards", lambda: CARDS)
    with pytest.raises(EngineError, match=r"^\[engine\] devices = 8, there are 2 graphics cards$"):
        find_devices(EngineOptions(devices=8), "cuda")
    assert (find_devices(EngineOptions(devices=2), "cuda").memory_bytes) == 20 * GIB
    assert find_devices(EngineOptions(), "cuda").count == 2

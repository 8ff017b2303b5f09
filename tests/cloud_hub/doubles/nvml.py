"""The driver's library of a machine with graphics cards, as nvidia-ml-py has it: `sys.modules["pynvml"]`."""

from types import ModuleType

from policies.serving.capacity import CardMemory


class NvmlError(Exception):
    """What the library raises."""


class Nvml(ModuleType):
    """`cards` of the machine; `broken`: there is no driver. `millijoules` of each card; None = it has no counter."""

    NVMLError = NvmlError

    def __init__(self, cards: tuple[CardMemory, ...], *, broken: bool = False) -> None:
        super().__init__("pynvml")
        self.cards = cards
        self.broken = broken
        self.millijoules: list[int | None] = [0] * len(cards)

    def nvmlInit(self) -> None:
        if self.broken:
            raise NvmlError("NVML Shared Library Not Found")

    def nvmlDeviceGetCount(self) -> int:
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> CardMemory:
        return self.cards[index]

    def nvmlDeviceGetName(self, handle: CardMemory) -> str:
        return handle.name

    def nvmlDeviceGetMemoryInfo(self, handle: CardMemory) -> object:
        found = ModuleType("memory")
        found.__dict__.update(total=handle.total_bytes, free=handle.free_bytes)
        return found

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: CardMemory) -> int:
        told = self.millijoules[handle.index]
        if told is None:
            raise NvmlError("Not Supported")
        return told

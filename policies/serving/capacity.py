"""Memory of a hub's machine: its graphics cards and its host. Sizes are in bytes. Pure."""

import msgspec


class CardMemory(msgspec.Struct, frozen=True):
    """One graphics card and its memory. `index`: as CUDA counts; `free_bytes`: now."""

    index: int
    name: str
    total_bytes: int
    free_bytes: int


class HostMemory(msgspec.Struct, frozen=True):
    """Memory of the host, or of the group that the service manager put this process into."""

    total_bytes: int
    free_bytes: int

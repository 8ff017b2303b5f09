"""Launcher seam of a rank group: how the ranks of one generation come to life, and `LocalLauncher`, which forks them.

Rule: a launcher gives every rank a connection to the supervisor and a place where torch.distributed meets; from there
on a rank group is the same wherever its ranks run. Several machines: `cloud_hub/engine/sharded/cluster/launcher.py`.
"""

import shutil
import socket
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from cloud_hub.engine.sharded.fork_server import ForkServer, ForkServerError, RankProcess, wait_for_death
from cloud_hub.engine.sharded.protocol import RankConfig, RankLink

_GONE_S = 5.0


class LaunchError(OSError):
    """The ranks of a generation could not be started; none is left. `rank`: which one, -1 if it is not of one rank.

    `cluster`: the machines are at fault, not bundle or installation, so that it may go well later.
    """

    def __init__(self, why: str, rank: int = -1, *, cluster: bool = False) -> None:
        super().__init__(why)
        self.rank = rank
        self.cluster = cluster


class LostRank(NamedTuple):
    """A rank that is known to be dead, and why, in a few words."""

    rank: int
    why: str


class LaunchedRanks(Protocol):
    """The ranks of one generation, connected, before they were configured. All sequences are in the order of ranks.

    `store`: where torch.distributed meets, a file or `tcp://host:port`; `devices`: what each rank computes on;
    `places`: the machine of each, "" for this one; `news`: readable when `find_lost` may know more, None if never.
    """

    @property
    def links(self) -> Sequence[RankLink]: ...

    @property
    def pids(self) -> Sequence[int]: ...

    @property
    def devices(self) -> Sequence[str]: ...

    @property
    def places(self) -> Sequence[str]: ...

    @property
    def store(self) -> str: ...

    @property
    def news(self) -> socket.socket | None: ...

    def list_pending(self) -> Sequence[int]:
        """Ranks whose links hold something that was taken from the network already, and that no selector shows."""
        ...

    def find_lost(self, patience_s: float = 0.0) -> Sequence[LostRank]:
        """The ranks that are known to be dead, after waiting up to `patience_s` seconds for the first one."""
        ...

    def kill(self) -> None:
        """Close the links, kill all ranks as far as they can be reached, and release what belongs to the generation."""
        ...


class RankLauncher(Protocol):
    """Starts the ranks of one generation after the other."""

    @property
    def pid(self) -> int:
        """Process of this machine that starts the ranks; 0 if there is none."""
        ...

    def start_ranks(self, charter: RankConfig, until: float) -> LaunchedRanks:
        """Start and connect all ranks of `charter.generation`, by `until` (monotonic). LaunchError otherwise."""
        ...

    def close(self) -> None:
        """End whatever it started beside the ranks."""
        ...


class LocalLauncher:
    """Forks ranks on this machine, from a fork server that is replaced when it died.

    `files`: open weight files that every rank inherits; they belong to the caller.
    """

    def __init__(self, files: Sequence[int] = ()) -> None:
        self._files = tuple(files)
        self._server: ForkServer | None = None

    @property
    def pid(self) -> int:
        return self._server.pid if self._server else 0

    def start_ranks(self, charter: RankConfig, until: float) -> LaunchedRanks:
        server, ranks = self._ensure_server(), LocalRanks(charter)
        for at in range(charter.tensor * charter.pipeline):
            try:
                ranks.add(server, self._files, until)
            except ForkServerError as error:
                ranks.kill()
                raise LaunchError(str(error), at) from None
        return ranks

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self._server = None

    def _ensure_server(self) -> ForkServer:
        if self._server is not None and not self._server.alive:
            self.close()
        self._server = self._server or ForkServer()
        return self._server


class LocalRanks:
    """Ranks that are processes of this machine, with socket pairs as links and a file of their own to meet at."""

    news = None  # the links end at once

    def __init__(self, charter: RankConfig) -> None:
        self._first = charter.device
        self._folder = Path(tempfile.mkdtemp(prefix="skerry-gang-"))
        self._ranks: list[RankProcess] = []
        self._links: list[socket.socket] = []

    @property
    def store(self) -> str:
        return str(self._folder / "meet")

    @property
    def links(self) -> Sequence[RankLink]:
        return self._links

    @property
    def pids(self) -> Sequence[int]:
        return tuple(rank.pid for rank in self._ranks)

    @property
    def devices(self) -> Sequence[str]:
        return tuple(number_device(self._first, at) for at in range(len(self._links)))

    @property
    def places(self) -> Sequence[str]:
        return ("",) * len(self._links)

    def add(self, server: ForkServer, files: Sequence[int], until: float) -> None:
        """Fork the next rank. ForkServerError if it is not there by `until`."""
        ours, theirs = socket.socketpair()
        self._links.append(ours)
        try:
            self._ranks.append(server.spawn(theirs, files, until))
        finally:
            theirs.close()

    def list_pending(self) -> Sequence[int]:
        return ()

    def find_lost(self, patience_s: float = 0.0) -> Sequence[LostRank]:
        if patience_s:
            wait_for_death(self._ranks, patience_s)
        return [LostRank(at, "died") for at, rank in enumerate(self._ranks) if not rank.alive]

    def kill(self) -> None:
        ranks, self._ranks = self._ranks, []
        for rank in ranks:
            rank.kill(_GONE_S)
            rank.close()
        for link in self._links:
            link.close()
        self._links = []
        shutil.rmtree(self._folder, ignore_errors=True)


def number_device(first: str, at: int) -> str:
    """Device number `at`, counted up from the first: `cuda:2` of `cuda:0`; there is one CPU."""
    kind, _, number = first.partition(":")
    return f"{kind}:{int(number) + at}" if number else kind

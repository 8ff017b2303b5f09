"""A wire to a PostgreSQL server that may swallow the answer to a COMMIT: it is carried out, and nobody hears of it."""

import contextlib
import select
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Self

import sqlalchemy as sa

from tests.postgres import PostgresServer

_SOCKET = ".s.PGSQL.5432"
_BYTES = 65536


class SilentCommit:
    """Relay between a hub's connection and the server's socket. As a context it listens; its threads end with it.

    `armed`: the connection that commits next is cut after the server has carried the COMMIT out. `cuts`: so far.
    """

    def __init__(self, server: PostgresServer, folder: Path) -> None:
        self.armed = False
        self.cuts = 0
        self._folder = folder
        self._target = str(server.folder / _SOCKET)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / _SOCKET))
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._listener.listen()
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def url_of(self, url: str) -> str:
        """The same database through this relay."""
        through = sa.make_url(url).update_query_dict({"host": str(self._folder)})
        return through.render_as_string(hide_password=False)

    def _start(self, work: Callable[..., None], *facts: socket.socket) -> None:
        self._threads.append(threading.Thread(target=work, args=facts, daemon=True))
        self._threads[-1].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the listener was shut down
            while True:
                self._start(self._carry, self._listener.accept()[0])

    def _carry(self, near: socket.socket) -> None:
        with near, socket.socket(socket.AF_UNIX) as far, contextlib.suppress(OSError):
            far.connect(self._target)
            silent = False
            while True:
                for end in select.select([near, far], [], [])[0]:
                    data = end.recv(_BYTES)
                    if not data:
                        return
                    if end is near and self.armed and b"COMMIT" in data:
                        self.armed, silent = False, True
                    if end is far and silent:  # this is the answer: the commit is on disk
                        self.cuts += 1
                        return
                    (far if end is near else near).sendall(data)

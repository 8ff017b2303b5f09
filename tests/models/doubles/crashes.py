"""Crash injector: kills an installation at each of its named points, each in a child process, and reports the restart.

Run as a program: FOLDER PACKED_OLD PACKED_NEW MODE. One JSON object on stdout: point -> what was left.
Modes: `kill` ends the process at the point at once; `full` makes the disk full there; `limit` makes the kernel
refuse every write beyond a size.
"""

import errno
import json
import os
import resource
import shutil
import signal
import sys
from hashlib import sha256
from pathlib import Path

from models.bundle.manifest import BundleError
from models.update.slots import Slot, Store, StoreStep

OLD, NEW = "models/echo/echo-1.skb", "models/echo/echo-2.skb"


def install(store: Store, packed: bytes, path: str) -> Slot:
    """Download (by hand), stage, activate."""
    slot = Slot(path, int(path.rpartition("-")[2].removesuffix(".skb")), sha256(packed).hexdigest())
    with store.reserve_part(slot.digest, len(packed)) as part:
        part.restart()
        part.append(packed)
        slot = store.stage_bundle(part, slot)
    store.activate(slot)
    return slot


def killed_at(point: StoreStep, folder: Path, packed: bytes) -> None:
    """End the process at one point of an installation."""

    def step(here: StoreStep) -> None:
        if here is point:
            os._exit(9)

    with Store(folder, step) as store:
        install(store, packed, NEW)


def full_at(point: StoreStep, folder: Path, packed: bytes) -> str:
    """A full disk at one point of an installation; the installer then removes what it wrote."""

    def step(here: StoreStep) -> None:
        if here is point:
            raise OSError(errno.ENOSPC, "No space left on device")

    with Store(folder, step) as store:
        try:
            install(store, packed, NEW)
        except OSError as error:
            store.reclaim_space()
            return f"{errno.errorcode[error.errno or 0]} serving {serving(store)}"
    return "installed"


def limited(folder: Path, packed: bytes) -> str:
    """Writes beyond 10 KB fail in the kernel, in the middle of a file."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
    with Store(folder) as store:
        try:
            install(store, packed, NEW)
        except OSError as error:
            store.reclaim_space()
            return f"{errno.errorcode[error.errno or 0]} serving {serving(store)}"
    return "installed"


def serving(store: Store) -> int:
    """Version of the bundle that is served; 0 if there is none."""
    if store.current is None:
        return 0
    return store.open_slot(store.current).manifest.version


def found(folder: Path) -> dict[str, object]:
    """State after a restart: what is served, whether it opens, and leftover slots and scratch folders."""
    try:
        with Store(folder) as store:
            slots = len(list((folder / "slots").iterdir()))
            named = sum(slot is not None for slot in (store.current, store.previous))
            result: dict[str, object] = {"serves": serving(store), "litter": slots - named}
            if store.previous:
                store.open_slot(store.previous)
            result["scratch"] = sorted(path.name for path in folder.rglob(".new-*"))
            install(store, Path(sys.argv[3]).read_bytes(), NEW)
            return {**result, "then": serving(store)}
    except (OSError, BundleError) as error:
        return {"broken": str(error)}


def in_child(work: object) -> str:
    """Run in a forked child; what it returns comes back through a pipe, "killed" if it never got that far."""
    assert callable(work)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        os.write(writer, str(work()).encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader, "rb") as file:
        return file.read().decode() or "killed"


def main() -> None:
    base, old, new, mode = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]
    packed = new.read_bytes()
    results = {}
    for point in StoreStep if mode != "limit" else [StoreStep.UNPACK]:
        folder = base / point
        with Store(folder) as store:
            install(store, old.read_bytes(), OLD)
        work = {"kill": killed_at, "full": full_at}.get(mode)
        said = in_child(lambda w=work, p=point, f=folder: w(p, f, packed) if w else limited(f, packed))
        used = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        results[point.value] = {"said": said, "used": used, **found(folder)}
        shutil.rmtree(folder)
    print(json.dumps(results))


if __name__ == "__main__":
    main()

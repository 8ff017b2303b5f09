"""Progress of commands that move large files, on standard error: shown only for what takes more than a moment."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from cloud_hub.repository.parts import ByteProgress
from models.cli.progress import ProgressCallback, stage_progress

QUIET_BYTES = 256 << 20  # less is read within two seconds


@contextmanager
def byte_progress(stage: str) -> Iterator[ByteProgress]:
    """Show how far a stage is; yields the function (bytes done, bytes in all) that updates it."""
    with ExitStack() as shown:
        opened: list[ProgressCallback] = []

        def tell(done: int, total: int) -> None:
            if total < QUIET_BYTES:
                return
            if not opened:
                opened.append(shown.enter_context(stage_progress()))
            opened[0](stage, min(1.0, done / total))

        yield tell

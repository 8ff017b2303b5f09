"""A machine's clock that a test sets, for one process and its children: wall time alone, by a preloaded library.

What the processes measure with (monotonic time) and what the kernel writes (times of files) stay as they are.
"""

import mmap
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Self

import pytest

DAY_S = 86_400
_VARIABLE = "SKERRY_TEST_CLOCK"
_SOURCE = """
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static volatile long long *off;
__attribute__((constructor)) static void find_clock(void) {
    const char *path = getenv("SKERRY_TEST_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *found = file < 0 ? MAP_FAILED : mmap(0, 8, PROT_READ, MAP_SHARED, file, 0);
    if (found != MAP_FAILED) off = found;
    if (file >= 0) close(file);
}
int clock_gettime(clockid_t id, struct timespec *at) {
    int failed = (int)syscall(SYS_clock_gettime, id, at);
    if (!failed && off && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) at->tv_sec += *off;
    return failed;
}
int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
"""


class WrongClock:
    """The wall clock of processes with `environment`; it is right until `set_off`. Skips where there is no compiler."""

    def __init__(self, library: Path, shared: Path) -> None:
        self.environment = {"LD_PRELOAD": str(library), _VARIABLE: str(shared)}
        self._shared = shared
        self.set_off(0)

    @classmethod
    def build(cls, folder: Path) -> Self:
        compiler = shutil.which("cc")
        if compiler is None:
            pytest.skip("no C compiler: another clock cannot be preloaded")
        source, library = folder / "clock.c", folder / "clock.so"
        source.write_text(_SOURCE)
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source], check=True, capture_output=True)
        shared = folder / "clock"
        shared.write_bytes(bytes(8))
        return cls(library, shared)

    def set_off(self, seconds: int) -> None:
        """Set the clock so many seconds ahead, or back where it is negative, while its processes run."""
        with self._shared.open("r+b") as file, mmap.mmap(file.fileno(), 8) as memory:
            memory[:] = struct.pack("q", seconds)

"""What the broker's process does before it becomes Mosquitto: it drops root and ties its life to the hub's.

A program of its own, run by a fresh interpreter instead of between fork and exec: the hub has threads, and a lock held
at the fork would stay held. It imports only what is loaded while it may still read its interpreter's files.

Usage: python -I -S broker_child.py HUB_PID USER:GROUP PORTS PROGRAM [ARGUMENT...]
USER:GROUP: numbers, or - to stay the user that it is; PORTS: `low` = it listens on a port below 1,024.
"""

import ctypes
import os
import sys

_SET_DEATH_SIGNAL = 1  # prctl(2)
_KEEP_CAPABILITIES = 8
_AMBIENT, _AMBIENT_RAISE = 47, 2
_SIGTERM = 15
_BIND_LOW_PORTS = 10  # CAP_NET_BIND_SERVICE
_CAPABILITY_VERSION = 0x20080522  # capset(2): two words for each of three sets


def main(arguments: list[str]) -> None:
    """Become the program; exits with one line if that is not possible."""
    hub, user, ports, program = arguments[:4]
    if user != "-":
        _drop_root(*map(int, user.split(":")), low_ports=ports == "low")
    if sys.platform == "linux":  # after the change of user, which would clear it
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, _SIGTERM)
    if os.getppid() != int(hub):
        sys.exit(1)
    try:
        os.execv(program, arguments[3:])  # noqa: S606 - no shell is wanted
    except OSError as error:
        sys.exit(f"{program} cannot be run by user {os.geteuid()}: {error.strerror}")


def _drop_root(user: int, group: int, *, low_ports: bool) -> None:
    """Become another user, with no group but its own; `low_ports`: the power to listen below port 1,024 stays."""
    library = ctypes.CDLL(None) if low_ports and sys.platform == "linux" else None
    if library is not None:
        library.prctl(_KEEP_CAPABILITIES, 1)
    os.setgroups([])
    os.setgid(group)  # as root these set the saved ids too: there is no way back
    os.setuid(user)
    if library is not None:
        bit = 1 << _BIND_LOW_PORTS
        header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
        library.capset(header, (ctypes.c_uint32 * 6)(bit, bit, bit, 0, 0, 0))
        words = [ctypes.c_ulong(word) for word in (_AMBIENT_RAISE, _BIND_LOW_PORTS, 0, 0)]
        library.prctl(_AMBIENT, *words)


if __name__ == "__main__":
    main(sys.argv[1:])

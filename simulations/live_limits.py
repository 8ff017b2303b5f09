"""How many sockets this process may have: as many as the machine allows it."""

import resource


def all_descriptors() -> int:
    """Raise the soft limit of open files up to the hard one, for this process and those it starts. The limit then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard

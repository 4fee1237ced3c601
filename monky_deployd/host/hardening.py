"""What a process does for itself so that its memory, which holds secrets, stays its own."""

import ctypes
import os
import resource

from monky_deployd.errors import StateError

# <linux/prctl.h>
_PR_SET_DUMPABLE = 4


def forbid_core_dumps() -> None:
    """Let no crash of this process write its memory to a file, nor that of its children.

    The limit is inherited by children, but a core_pattern that is a pipe takes no notice of it.
    Not being dumpable (prctl(2)) holds there too, and keeps other processes of the same user
    from reading this one's memory and environment; it ends with an exec.

    Raises StateError where the system refuses either.
    """
    try:
        # A unit with LimitCORE=0 has done this already, and may filter the call.
        if resource.getrlimit(resource.RLIMIT_CORE) != (0, 0):
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        _prctl(_PR_SET_DUMPABLE, 0)
    except (OSError, ValueError) as error:
        raise StateError(
            f"core dumps, which would hold secrets, can't be turned off: {error}",
            remedy="allow this process prctl and setrlimit, or set its core limit to 0",
        ) from error


def _prctl(option: int, value: int) -> None:
    # The interpreter itself, so the C library that it was linked with; nothing is looked up.
    libc = ctypes.CDLL(None, use_errno=True)
    zero = ctypes.c_ulong(0)
    if libc.prctl(option, ctypes.c_ulong(value), zero, zero, zero) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))

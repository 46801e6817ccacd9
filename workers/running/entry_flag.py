"""Shared memory flag that a child process sets before it enters a tool.

If a child is lost and the flag is unchanged since the call was sent, the child did not start the
call, whatever happened to the socket. Setting it costs no system call, and it survives any kind of
death. The child keeps no descriptor of it that a tool could write to by mistake.
"""

import ctypes
import mmap
import os
import sys
import tempfile
import weakref

if sys.platform == "linux":
    import fcntl

_BYTES = 8
_FAILED = ctypes.c_void_p(-1).value


class EntryFlag:
    """Eight shared bytes; the descriptor may be closed afterwards. Raises OSError."""

    def __init__(self, descriptor: int) -> None:
        # Python's own mmap holds a copy of the descriptor for as long as it lives.
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [
            ctypes.c_void_p,
            ctypes.c_size_t,
            ctypes.c_int,
            ctypes.c_int,
            ctypes.c_int,
            ctypes.c_long,
        ]
        libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        access = mmap.PROT_READ | mmap.PROT_WRITE
        address = libc.mmap(None, _BYTES, access, mmap.MAP_SHARED, descriptor, 0)
        if address == _FAILED:
            raise OSError(ctypes.get_errno(), "mmap failed")
        self._number = ctypes.c_uint64.from_address(address)
        weakref.finalize(self, libc.munmap, address, _BYTES).atexit = False

    @property
    def run(self) -> int:
        """The run whose tool may have been entered; 0 before the first."""
        return self._number.value

    def mark_entered(self, run: int) -> None:
        """Record that the tool of `run` may now be entered."""
        self._number.value = run


def create() -> int:
    """Create memory for a flag; the caller closes the descriptor. Raises OSError."""
    if sys.platform == "linux":
        descriptor = os.memfd_create("toolpool-mark", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(descriptor, _BYTES)
        # Reading a truncated mapping kills the process.
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
        return descriptor
    with tempfile.TemporaryFile() as file:
        descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, _BYTES)
    return descriptor

"""A word that a child process leaves for its worker before it enters a tool.

A child that is lost did not start its call if the mark is what it was when the call was given to
it, whatever became of the socket between them. It is memory that both share: to leave it costs no
system call, and what was left is there after any kind of death. The child keeps no descriptor of
it, over which a tool could write by mistake.
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
    """Eight shared bytes; the descriptor is not needed any more. Raises OSError."""

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

    def leave(self, run: int) -> None:
        """From here on the tool of `run` may be entered."""
        self._number.value = run


def create() -> int:
    """A descriptor, to be closed by the caller, of memory for one mark. Raises OSError."""
    if sys.platform == "linux":
        descriptor = os.memfd_create("toolpool-mark", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(descriptor, _BYTES)
        # Whoever reads memory that was cut off its file is killed.
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
        return descriptor
    with tempfile.TemporaryFile() as file:
        descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, _BYTES)
    return descriptor

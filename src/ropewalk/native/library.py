"""The compiled library, if the installation has one.

It is plain C behind ctypes: no headers of Python are needed to build it, and calls let other threads run.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from pathlib import Path

VERSION = 11  # as NATIVE_VERSION in native.h
FILE = Path(__file__).with_name("loops.lib")  # not `.so`: Python takes every such file for a module

_u32, _u64, _bytes = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_void_p
_SIGNATURES: dict[str, tuple[type | None, tuple[type, ...]]] = {
    "ropewalk_native_version": (_u32, ()),
    "ropewalk_weave": (
        ctypes.c_int64,
        (
            *(_bytes, _u64, _u32, _bytes, _bytes, _u64, _u64, _bytes),
            *(_bytes, _u64, _u64, _u64, _bytes, _bytes, _bytes),
        ),
    ),
    "ropewalk_pack_bound": (_u64, (_u64, _u64)),
    "ropewalk_pack": (
        ctypes.c_int64,
        (_bytes, _bytes, _bytes, _u64, _u64, _bytes, _u64, _u64, _bytes, _bytes),
    ),
    "ropewalk_shift": (None, (_bytes, _u64, _u64)),
    "ropewalk_unpack": (
        ctypes.c_int64,
        (_bytes, _u64, ctypes.c_int32, _u64, *(_bytes, _u64) * 3, _bytes, _bytes, _bytes),
    ),
    "ropewalk_hash_all": (ctypes.c_int64, (_bytes, _u64, _bytes, _bytes, _u64, _bytes)),
    "ropewalk_hash_lines": (ctypes.c_int64, (_bytes, _u64, _bytes, _u64, _u64, _bytes)),
    "ropewalk_state_leaves": (
        ctypes.c_int64,
        (_bytes, _u64, _bytes, _u64, _u64, _bytes, _u64, _bytes, _u64, _bytes, _u64),
    ),
    "ropewalk_levels": (ctypes.c_int32, (_bytes, _u64, _bytes, _u64, _u64)),
    "ropewalk_canonical_lines": (ctypes.c_int64, (_bytes, _u64, _u64, _bytes)),
    "ropewalk_cast": (
        ctypes.c_int32,
        (_bytes, _bytes, _u64, *(_bytes,) * 5, _u64, _bytes, _bytes, _u64, _bytes, _bytes),
    ),
    "ropewalk_signed": (
        ctypes.c_int32,
        (_bytes, _bytes, _bytes, _u64, _bytes, _u64, _bytes, _bytes, _u64, _bytes),
    ),
    "ropewalk_index": (ctypes.c_int32, (_u64, _bytes, _bytes, _bytes, _bytes)),
}


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL | None:
    """Return the library; None where it was not built, or is of another build."""
    try:
        loaded = ctypes.CDLL(str(FILE))
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(loaded, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError):
        return None
    return loaded if loaded.ropewalk_native_version() == VERSION else None

"""Kernels: functions compiled once by numba, kept as machine code on disk, and called without numba from then on.

numba takes a quarter of a second to import and as long again to load what it has cached; most runs are shorter.

To add a kernel, write a function of numbers and arrays in a file of `formats/kernels` and say what it takes and gives:

    @kernel(records=Array(RECORD), last_offset=Array(np.int64, out=True), returns=None)
    def note_last(records: Any, last_offset: Any) -> None: ...

It is called by position with numbers and arrays, from any thread, and runs without the interpreter's lock. What it
calls in turn carries `@part`, in any module there; what only LLVM can say is in `byte_intrinsics.py`. Names of its
module are compiled in as constants: numbers, bytes, arrays. It cannot allocate or raise: give it arrays to fill, and
let `Array(..., some=True)` refuse an empty one whose size is divided by. Changed code is noticed by itself, constants
and parts included; nothing has to be cleared. `tests/codec/test_compiled.py` holds every kernel to that.

With NUMBA_BOUNDSCHECK=1 numba runs the kernels itself, compiled anew in each process. With NUMBA_DISABLE_JIT=1, and
where the system refuses executable memory, they are interpreted (`formats.compiled.interpreted`).
"""

from formats.compiled.declare import BOOL, INT, Array, Kernel, intrinsic, kernel, part

__all__ = ["BOOL", "INT", "Array", "Kernel", "intrinsic", "kernel", "part"]

"""Kernels: loops over rows, units and bytes in C, each declared next to an equivalent in plain Python.

The C files are compiled when the package is built (`hatch_build.py`), by `make setup`, before tests, and by
`python -m formats.native.build`; nothing is compiled when a command runs. Kernels are called with positional numbers
and arrays, from any thread, and run without the interpreter's lock. If the library is missing, does not load, or was
built from other sources, and with MQTOOL_REFERENCE=1, the Python under the declaration runs instead: the same results,
slower, and one line reports it.

To add a kernel, declare its parameters and results in Python (`formats.native.library`), with a plain implementation:

    @kernel(records=Array(RECORD), last_offset=Array(np.int64, out=True), returns=None)
    def note_last(records: Any, last_offset: Any) -> None: ...

Then write `mq_note_last` in C and its signature into `kernels.h`: an array is an address and a length. It must keep
every index within the lengths, whatever the arrays hold. A kernel that may only say yes needs no Python implementation:
it can always say no. `tests/formats/test_native.py` compares header and declarations, and both versions of each kernel.
"""

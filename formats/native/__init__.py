"""Kernels: loops over rows, units and bytes in C, each declared beside the same in plain Python.

The C files are compiled when the package is built (`hatch_build.py`), by `make setup`, before tests, and by
`python -m formats.native.build`; nothing is compiled when a command runs. A kernel is called by position with numbers
and arrays, from any thread, and runs without the interpreter's lock. Where the library is missing, does not load, or
was built from other sources, and with MQTOOL_REFERENCE=1, the Python under the declaration runs instead: the same
answers, later, and one line that says so.

To add a kernel, say in Python what it takes and gives (`formats.native.library`), and do it plainly:

    @kernel(records=Array(RECORD), last_offset=Array(np.int64, out=True), returns=None)
    def note_last(records: Any, last_offset: Any) -> None: ...

Then write `mq_note_last` in C and its signature into `kernels.h`: an array is an address and a length. It keeps every
index inside of the lengths, whatever the arrays hold. What may only say yes can do without the Python: it says no.
`tests/formats/test_native.py` holds header and declarations together, and both ways of each kernel against each other.
"""

"""BatchConsumeQueue: one unit for a record that holds several messages; also the queues of compaction.

Sources: broker classes BatchConsumeQueue, SparseConsumeQueue. Files are named by byte position,
which tells nothing about queue offsets: those stand in each unit. The queues of compaction use the
same unit, a file there has the name of its compaction log file, and an end mark after the last unit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NamedTuple

from formats.layout import I16, I32, I64, Buffer, Layout

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class BatchCqUnit(NamedTuple):
    """One record: a batch of messages with consecutive queue offsets."""

    phy_offset: Annotated[int, I64, "where the record starts in the commitlog; never negative"]
    size: Annotated[int, I32, "bytes of the record; above 0"]
    tags_code: Annotated[int, I64, "hash of TAGS"]
    store_timestamp: Annotated[int, I64, "store timestamp (ms) of the record"]
    base_offset: Annotated[int, I64, "queue offset of the first message; never negative"]
    batch_size: Annotated[int, I16, "how many messages the record holds; above 0"]
    compacted_offset: Annotated[int, I32, "-1 unless written by compaction"]
    reserved: Annotated[int, I32, "0"]


BATCH_CQ_UNIT = Layout.of(BatchCqUnit)


def is_valid(unit: BatchCqUnit) -> bool:
    """The test at which BatchConsumeQueue.recover stops."""
    return unit.phy_offset >= 0 and unit.size > 0 and unit.base_offset >= 0 and unit.batch_size > 0


def valid_mask(buffer: Buffer) -> npt.NDArray[np.bool_]:
    """`is_valid` of every whole unit of a file."""
    import numpy as np

    units = np.frombuffer(buffer, dtype=BATCH_CQ_UNIT.dtype, count=len(buffer) // BATCH_CQ_UNIT.size)
    mask: npt.NDArray[np.bool_] = (
        (units["phy_offset"] >= 0) & (units["size"] > 0) & (units["base_offset"] >= 0) & (units["batch_size"] > 0)
    )
    return mask

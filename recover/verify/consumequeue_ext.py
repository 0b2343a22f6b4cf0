"""The units that a queue names in consumequeue_ext: are they there, in order, and of the right message?"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from formats.names import offset_to_name
from recover.files.ext_files import ExtFiles, is_address, positions_of
from recover.files.queue_files import Stretch
from recover.findings import Finding, finding
from recover.memory.columns import Rows


class ExtVerdict(Struct, frozen=True):
    """`tags_codes`: those of a stretch of queue units, with the addresses of intact ext units replaced by what they
    hold. `broken`: cells that name the right message, but an ext unit that is none of its own (bool array)."""

    tags_codes: Rows
    broken: Rows


def check_ext(stretch: Stretch, files: ExtFiles, rows: Rows, tags_codes: Rows) -> ExtVerdict:
    """Follow the ext addresses of a stretch. `rows` are the EXPECTED positions with the given tags codes."""
    tags = stretch.tags_code.copy()
    broken = np.zeros(tags.size, dtype=bool)
    known = files.units
    cells = rows["queue_offset"] - stretch.first_index
    inside = np.flatnonzero((cells >= 0) & (cells < stretch.held))
    cells = cells[inside]
    named = is_address(tags[cells])
    named &= (stretch.phy_offset[cells] == rows["phy_offset"][inside]) & (stretch.size[cells] == rows["size"][inside])
    cells, inside = cells[named], inside[named]
    positions = positions_of(tags[cells])
    at = known.find(positions)
    intact = at >= 0
    if known.position.size:
        intact &= known.tags_code[at] == tags_codes[inside]
        intact &= known.store_timestamp[at] == rows["store_timestamp"][inside]
    # a start cuts the files behind the unit of the queue's last cell, so those of earlier ones must stand in front
    intact[intact] = np.diff(np.maximum.accumulate(positions[intact]), prepend=-1) > 0
    tags[cells[intact]] = tags_codes[inside[intact]]
    broken[cells[~intact]] = True
    return ExtVerdict(tags, broken)


def broken_finding(stretch: Stretch, files: ExtFiles, start: int, stop: int) -> Finding:
    """The finding about broken cells [start, stop) of a stretch, at the place that the first one names."""
    address = int(stretch.tags_code[start])
    mapped_file, position = files.place(address)
    folder = files.store.consumequeue_ext_dir / files.topic / str(files.queue_id)
    base = position // files.store.ext_file_size * files.store.ext_file_size
    path = mapped_file.path if mapped_file is not None else folder / offset_to_name(base)
    return finding(
        "consumequeue-ext-broken", files.store.relative(path), position - (base if mapped_file is None else 0),
        topic=files.topic, queue=files.queue_id, first=stretch.first_index + start, last=stretch.first_index + stop - 1,
        count=stop - start, phy_offset=int(stretch.phy_offset[start]), address=address,
    )

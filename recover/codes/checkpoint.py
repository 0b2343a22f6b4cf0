"""Findings about the checkpoint."""

from __future__ import annotations

from recover.finding_code import Code

_RECOVER = "mqtool recover {store}"
_PAGE = "It says how far log, queues and index were flushed; only a start after an unclean stop believes it."

CHECKPOINT_CODES: tuple[Code, ...] = (
    Code(
        "checkpoint-missing", "warning",
        "there is no checkpoint; after an unclean stop a broker up to 5.3 would read the whole log again "
        "({log_bytes} bytes) and drop every index file",
        _RECOVER,
        meaning=_PAGE,
        cause="It was deleted, or a copy of the store left it out.",
        broker="It makes one of zeros. Up to 5.3 an abnormal recovery then begins at the first file; from 5.4 on at "
        "the tenth newest, and queues that lack older units stay that way.",
        action="Recover: the times are those of the last record.",
    ),
    Code(
        "checkpoint-short", "warning",
        "the checkpoint is {length} bytes long instead of {expected}; the fields that are cut off count as zero",
        _RECOVER,
        meaning="A broker maps one page of 4096 bytes and writes it whole.",
        cause="A copy that stopped, or a crash while the file system was full.",
        broker="It lengthens the file with zeros and believes those.",
        action="Recover: the file is written whole.",
    ),
    Code(
        "checkpoint-all-zero", "warning",
        "the checkpoint holds nothing but zeros although the log has records; after an unclean stop a broker up to 5.3 "
        "would read the whole log again ({log_bytes} bytes) and drop every index file",
        _RECOVER,
        meaning=_PAGE,
        cause="A power cut that reached the file's length but not its content.",
        broker="As without a checkpoint: up to 5.3 recovery begins at the first file, from 5.4 on at the tenth newest.",
        action="Recover: the times are those of the last record.",
    ),
    Code(
        "checkpoint-later-than-log", "warning",
        "the checkpoint's {field} is {value} ms, {ahead_ms} ms after the newest record of the log ({newest}); after an "
        "unclean stop a broker would begin too late",
        _RECOVER,
        meaning="No part can be flushed up to a time at which no record was stored.",
        cause="The log lost its end, the checkpoint is of another store, or its bytes are damaged.",
        broker="An abnormal recovery begins at the newest file that is not younger than the checkpoint says, and gives "
        "the queues nothing of what lies before it.",
        action="Recover: the times are lowered to the last record's.",
    ),
    Code(
        "checkpoint-impossible-time", "warning", "the checkpoint's {field} is {value}, which is no time", _RECOVER,
        meaning="Times are milliseconds since 1970, or 0 for never.",
        cause="Damaged bytes.",
        broker="An abnormal recovery reads the whole log, or drops the index.",
        action="Recover: the field is written anew.",
    ),
    Code(
        "checkpoint-offset-no-record", "warning",
        "the checkpoint's logics_physical_offset is {value}, where no record starts (the log ends at {log_end})",
        _RECOVER,
        meaning="Since 5.5.0 this field names the last record that has a flushed queue unit.",
        cause="The log was cut after the checkpoint's back, or damaged bytes.",
        broker="5.5 chooses the start file of an abnormal recovery by it alone, and can begin too late.",
        action="Recover: the field is set to the last record, or to 0.",
    ),
    Code(
        "checkpoint-unreadable", "error", "the checkpoint could not be read: {error}",
        "Check the disk and the permissions, then run again.",
        meaning="The operating system refused to read the file.",
        cause="A failing disk, a lost mount, or missing permission.",
        broker="It does not start.",
        action="Make the file readable, or move it aside: recover writes a new one.",
        bits=8,
    ),
)

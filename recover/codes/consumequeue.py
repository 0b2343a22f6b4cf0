"""Findings about consume queues."""

from __future__ import annotations

from recover.finding_code import Code

_REBUILD = "mqtool recover {store}   (or: mqtool rebuild-consumequeue {store} --topic {topic} --queue {queue})"

CONSUMEQUEUE_CODES: tuple[Code, ...] = (
    Code(
        "consumequeue-missing-units", "warning",
        "{topic}/{queue}: no unit at queue offsets {first} to {last} ({count}), but the log has the messages", _REBUILD,
        one="{topic}/{queue}: no unit at queue offset {first}, but the log has the message",
        meaning="The messages are in the commitlog, but the queue does not name them, so no consumer is given them.",
        cause="The broker died between writing the log and dispatching it, the disk was full, or queue files were deleted.",
        broker="After an unclean stop it dispatches again from its start file; after a clean stop only what lies after "
        "the furthest unit of all queues. A single queue that lags behind is never filled up.",
        action="Recover, or rebuild the queue: the units are computed from the log.",
    ),
    Code(
        "consumequeue-wrong-units", "warning",
        "{topic}/{queue}: the units at queue offsets {first} to {last} ({count}) do not name their messages",
        _REBUILD,
        one="{topic}/{queue}: the unit at queue offset {first} does not name its message",
        meaning="A unit's position, size or tags code is not that of the intact record with this queue offset.",
        cause="Stale units of an earlier life of the queue, an append at a shifted place, or damage.",
        broker="It trusts every unit with size > 0: consumers get other messages, or the same ones again.",
        action="Recover, or rebuild the queue.",
    ),
    Code(
        "consumequeue-beyond-log", "warning",
        "{topic}/{queue}: the units at queue offsets {first} to {last} ({count}) point after the end of the log ({log_end})",
        _REBUILD,
        one="{topic}/{queue}: the unit at queue offset {first} points after the end of the log ({log_end})",
        meaning="The queue names records that the log does not hold (any more).",
        cause="The log lost its end: a power cut before it reached the disk, a truncation that stopped half way. Where "
        "more than this queue shows that messages stood there, the log has a finding of its own.",
        broker="It cuts them at start when its recovery reaches the log end; if not, consumers stall there.",
        action="Recover: the units are dropped, and the loss statement names each message that they stood for.",
    ),
    Code(
        "consumequeue-lost-units", "info",
        "{topic}/{queue}: the units at queue offsets {first} to {last} ({count}) refer to damaged or lost messages", "",
        one="{topic}/{queue}: the unit at queue offset {first} refers to a damaged or lost message",
        meaning="The unit lies in a damaged range of the log, or at the position of a message that a bridge replaces.",
        cause="The damage itself is reported with the commitlog.",
        broker="Consumers that reach such a unit may skip more than it; a bridged one repeats the message before it.",
        action="Nothing of its own: recover treats them together with the damage.",
    ),
    Code(
        "consumequeue-ext-broken", "warning",
        "{topic}/{queue}: {count} units from queue offset {first} to {last} have no ext unit of their own", _REBUILD,
        one="{topic}/{queue}: the unit at queue offset {first} has no ext unit of its own",
        meaning="The unit names the right message, but its address in consumequeue_ext leads to nothing, to the unit "
        "of another message, or to one that a walk from the file's start does not reach.",
        cause="Files of consumequeue_ext are damaged or gone, or older than the queue.",
        broker="It logs the failure and filters the message without tags code and bit map: consumers with a filter are "
        "sent more than they asked for. Ext units after a broken one are cut off at start.",
        action="Recover, or rebuild the queue: the ext unit is made again, without a filter bit map.",
    ),
    Code(
        "consumequeue-bad-file-length", "warning",
        "{topic}/{queue}: the file is {length} bytes long, the others {expected}", _REBUILD,
        meaning="A broker maps queue files at their configured size and refuses another length.",
        cause="A crash while the file was made, a copy that stopped, or another mappedFileSizeConsumeQueue.",
        broker="It does not start; from 5.1.3 on it deletes a last file of length 0 and goes on.",
        action="Recover: the file is put aside and built again.",
    ),
    Code(
        "consumequeue-empty-last-file", "warning",
        "{topic}/{queue}: the last file of the queue holds no unit", _REBUILD,
        meaning="The file was made for the next unit, and the unit never came.",
        cause="The broker or the machine died between making the file and writing into it.",
        broker="5.x reads the last unit of the last file when it starts, fails on a file without one, and does not start, "
        "unless dispatch has filled the file by then.",
        action="`mqtool recover` puts the file aside; the broker makes it again.",
    ),
    Code(
        "consumequeue-cut-off", "warning",
        "{topic}/{queue}: the queue seems to end at queue offset {first}, but units of expired messages go on to {last}",
        _REBUILD,
        meaning="A unit without a size ends a queue. Brokers leave none between units, so this one was damaged.",
        cause="A lost or misdirected write to the queue file.",
        broker="It takes the place for the end of the queue and gives these queue offsets to new messages: groups that had "
        "come further do not see them.",
        action="Recover: the place is made a blank one, and the queue keeps its end.",
    ),
    Code(
        "consumequeue-odd-name", "warning",
        "{name} in the queue folder is no queue file", "Move it out of the store, then start the broker.",
        meaning="Files of a queue folder are named by 20 digits; anything else does not belong there.",
        cause="A backup or an editor left it there.",
        broker="Loading it fails on its length or its name, and the broker does not start.",
        action="Recover puts it aside.",
    ),
    Code(
        "consumequeue-missing-file", "warning",
        "{topic}/{queue}: no file holds the queue offsets {first} to {last}", _REBUILD,
        meaning="Two queue files do not adjoin.",
        cause="A file between them was deleted.",
        broker="It loads the rest, and reads of that range fail.",
        action="Rebuild the queue.",
    ),
    Code(
        "consumequeue-unreadable", "error",
        "{topic}/{queue}: {wanted} bytes could not be read: {error}", "Check the disk; copy what can be read elsewhere first.",
        meaning="The operating system refused to read this part.",
        cause="A failing disk, a lost mount, or missing permission.",
        broker="It dies at the first touch of that page.",
        action="Save a copy of the store, then rebuild the queue from the log.",
        bits=8,
    ),
    Code(
        "topic-deleted", "info",
        "deleted topics with records left in the log ({count}): {names}", "",
        meaning="Neither topics.json nor consumequeue/ knows the topic, so its old records are nobody's.",
        cause="The topic was deleted; its records stay until their log files expire.",
        broker="A full replay makes the queues of deleted topics again.",
        action="Nothing. `--include-deleted` brings the queues back.",
    ),
    Code(
        "topic-unsafe-name", "error",
        "topics whose names cannot be folder names ({count}): {names}", "",
        meaning="A topic with a slash, a NUL or the like cannot have a queue folder of its own.",
        cause="A damaged or hostile record that still passes its checksums.",
        broker="It would make the folder wherever the name leads.",
        action="Look at the records with `mqtool query --phy-offset`; such queues are not rebuilt.",
    ),
    Code(
        "delay-table-inferred", "info",
        "the store's own units give these delays, not the given table: {text}", "",
        meaning="Units of the schedule topic carry deliver times that fit another messageDelayLevel.",
        cause="The broker runs with its own delay table.",
        broker="A rebuild by a broker uses the table in its configuration.",
        action="Nothing; pass `--set messageDelayLevel=...` to state it.",
    ),
)

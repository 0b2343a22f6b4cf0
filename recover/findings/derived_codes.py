"""Findings about what derives from the log: consume queues, index, checkpoint."""

from __future__ import annotations

from recover.findings.code import BAD_DISK, OPERATIONAL, READ_ON, RECOVER, Code, Remedy

_REBUILD = Remedy("recover", "mqtool recover {store} --dry-run   (or: mqtool rebuild-consumequeue {store} --topic {topic} --queue {queue} "
                  "--dry-run)")

CONSUMEQUEUE_CODES: tuple[Code, ...] = (
    Code(
        "consumequeue-missing", "warning", "there is no consume queue, but the log has messages",
        Remedy("recover", "mqtool recover {store} --dry-run   (or: mqtool rebuild-consumequeue {store} --dry-run)"),
        meaning="The messages are in the log, but no queue leads to them, so consumers receive none.",
        cause="A copy of the store left consumequeue/ out, it is kept elsewhere, or it was deleted.",
        broker="It recreates the queues from where its recovery begins; from 5.4.0 on that can leave out older messages.",
        action="If the folder is elsewhere, name it with --consumequeue. Otherwise recover, or rebuild the queues.",
    ),
    Code(
        "consumequeue-missing-units", "warning",
        "{topic}/{queue}: queue entries {first} to {last} are missing ({count}; the messages are in the log)", _REBUILD,
        one="{topic}/{queue}: queue entry {first} is missing (the message is in the log)",
        meaning="The messages are in the commitlog, but the queue has no entry for them, so consumers do not receive them.",
        cause="The broker died between writing the log and dispatching it, the disk was full, or queue files were deleted.",
        broker="After an unclean stop it dispatches again from its start file; after a clean stop only what is after "
        "the furthest entry of all queues. A single queue that lags behind is never completed.",
        action="Recover, or rebuild the queue: the entries are computed from the log.",
    ),
    Code(
        "consumequeue-wrong-units", "warning",
        "{topic}/{queue}: the entries at queue offsets {first} to {last} ({count}) do not point to their messages",
        _REBUILD,
        one="{topic}/{queue}: the entry at queue offset {first} does not point to its message",
        meaning="An entry's position, size or tags code is not that of the intact record with this queue offset.",
        cause="Stale entries of an earlier generation of the queue, an append at a shifted place, or damage.",
        broker="It trusts every entry with size > 0: consumers get other messages, or the same ones again.",
        action="Recover, or rebuild the queue.",
    ),
    Code(
        "consumequeue-beyond-log", "warning",
        "{topic}/{queue}: the entries at queue offsets {first} to {last} ({count}) point after the end of the log ({log_end})",
        _REBUILD,
        one="{topic}/{queue}: the entry at queue offset {first} points after the end of the log ({log_end})",
        meaning="The queue points to records that the log does not hold, or no longer holds.",
        cause="The log lost its end: a power cut before it reached the disk, a truncation that stopped half way. Where "
        "other evidence also shows that messages were there, the log has a finding of its own.",
        broker="It cuts them at start when its recovery reaches the log end; if not, consumers stall there.",
        action="Recover: the entries are dropped, and the loss statement lists each message that they pointed to.",
    ),
    Code(
        "consumequeue-lost-units", "info",
        "{topic}/{queue}: the entries at queue offsets {first} to {last} ({count}) refer to damaged or lost messages", "",
        one="{topic}/{queue}: the entry at queue offset {first} refers to a damaged or lost message",
        meaning="The entry lies in a damaged range of the log, or at the position of a message that a bridge replaces.",
        cause="The damage itself is reported with the commitlog.",
        broker="Consumers that reach such an entry may skip more than it; a bridged one repeats the message before it.",
        action="Nothing: recover handles them together with the damage.",
    ),
    Code(
        "consumequeue-ext-broken", "warning",
        "{topic}/{queue}: {count} entries from queue offset {first} to {last} have no ext entry of their own", _REBUILD,
        one="{topic}/{queue}: the entry at queue offset {first} has no ext entry of its own",
        meaning="The entry names the right message, but its address in consumequeue_ext leads to nothing, to the entry "
        "of another message, or to one that a walk from the file's start does not reach.",
        cause="Files of consumequeue_ext are damaged or missing, or older than the queue.",
        broker="It logs the failure and filters the message without tags code and bit map: consumers with a filter are "
        "sent more than they asked for. Ext entries after a broken one are cut off at start.",
        action="Recover, or rebuild the queue: the ext entry is recreated, without a filter bit map.",
    ),
    Code(
        "consumequeue-bad-file-length", "warning",
        "{topic}/{queue}: the file is {length:byte} long, the others {expected}", _REBUILD,
        meaning="A broker maps queue files at their configured size and refuses another length.",
        cause="A crash while the file was created, an incomplete copy, or another mappedFileSizeConsumeQueue.",
        broker="It does not start; from 5.1.3 on it deletes a last file of length 0 and continues.",
        action="Recover: the file is moved to quarantine and rebuilt.",
    ),
    Code(
        "consumequeue-empty-last-file", "warning",
        "{topic}/{queue}: the last file of the queue holds no entry", _REBUILD,
        meaning="The file was created for the next entry, which was never written.",
        cause="The broker or the machine died between creating the file and writing to it.",
        broker="5.x reads the last entry of the last file when it starts, fails on a file without one, and does not start, "
        "unless dispatch has filled the file by then.",
        action="`mqtool recover` moves the file to quarantine; the broker creates it again.",
    ),
    Code(
        "consumequeue-cut-off", "warning",
        "{topic}/{queue}: the queue seems to end at queue offset {first}, but entries of expired messages continue to {last}",
        _REBUILD,
        meaning="An entry without a size ends a queue. Brokers leave none between entries, so this one was damaged.",
        cause="A lost or misdirected write to the queue file.",
        broker="It takes that entry for the end of the queue and gives these queue offsets to new messages: groups that had "
        "come further do not see them.",
        action="Recover: a blank entry is written there, and the queue keeps its end.",
    ),
    Code(
        "consumequeue-odd-name", "warning",
        "{name} is not a queue file ({why})", RECOVER,
        meaning="Queue files are regular files, named by the 20 digits of an offset at which an entry begins; anything else does not "
        "belong in a queue folder.",
        cause="A backup or an editor left it there, or a file was renamed.",
        broker="Most releases fail on its length or its name and do not start; `mqtool predict` plays it.",
        action="Recover quarantines a regular file, and a folder whose name is not an offset. Move a pipe, a socket, a device, or "
        "a folder in the place of a queue file out of the store by hand.",
        leads="stop",
    ),
    Code(
        "consumequeue-missing-file", "warning",
        "{topic}/{queue}: no file holds the queue offsets {first} to {last}", _REBUILD,
        meaning="There is a gap between two queue files.",
        cause="A file between them was deleted.",
        broker="It loads the rest, and reads of that range fail.",
        action="Rebuild the queue.",
    ),
    Code(
        "consumequeue-unreadable", "error",
        "{topic}/{queue}: {wanted:byte} could not be read: {error}", READ_ON,
        meaning="The operating system refused to read this part.",
        cause=BAD_DISK,
        broker="It crashes when it first touches that page.",
        action="Save a copy of the store, then rebuild the queue from the log.",
        bits={"verify": OPERATIONAL},
    ),
    Code(
        "topic-deleted", "info",
        "deleted topics with records left in the log ({count}): {names}", "",
        meaning="The topic is neither in topics.json nor in consumequeue/, and topics.json is newer (`dataVersion.timestamp`) "
        "than its last message. An older table, such as a restored .bak, proves nothing, and the topic counts. No table "
        "names LMQ queues: one without a folder counts, too, unless the table is newer than its last message.",
        cause="The topic was deleted; its records stay until their log files expire.",
        broker="A full replay recreates the queues of deleted topics.",
        action="Nothing if they were deleted; else `--include-deleted` rebuilds the queues.",
    ),
    Code(
        "topic-unsafe-name", "error",
        "topics whose names cannot be folder names ({count}): {names}", "",
        meaning="A topic with a slash, a NUL or the like cannot have a queue folder of its own.",
        cause="A damaged or hostile record that still passes its checksums.",
        broker="It would create the folder wherever the name points.",
        action="Look at the records with `mqtool query --phy-offset`; such queues are not rebuilt.",
    ),
    Code(
        "delay-table-inferred", "info",
        "messageDelayLevel in the conf differs from this store: {levels:delays}", "",
        meaning="Entries of the schedule topic carry deliver times that fit another messageDelayLevel.",
        cause="The broker runs with its own delay table.",
        broker="A rebuild by a broker uses the table in its configuration.",
        action="Nothing; pass `--set messageDelayLevel=...` to state it.",
    ),
)


# --- Findings about index files.


_INDEX_REBUILD = Remedy("recover", "mqtool recover {store} --dry-run   (or: mqtool rebuild-index {store} --dry-run)")
_QUERIES = "Only queries by key, unique key and tag read the index; consuming does not."

INDEX_CODES: tuple[Code, ...] = (
    Code(
        "index-missing", "warning", "there is no index file, but the checkpoint shows that there was an index",
        _INDEX_REBUILD,
        meaning="Queries by key find no message.",
        cause="A copy of the store left index/ out, it is kept elsewhere, or it was deleted.",
        broker="It starts a new index with messages that are stored from then on, or dispatched by its recovery.",
        action="If the folder is elsewhere, name it with --index. Otherwise recover, or rebuild the index.",
    ),
    Code(
        "index-missing-units", "warning",
        "the index lacks {count:entry|entries} of {records:message} from {first} to {last}", _INDEX_REBUILD,
        one="the index lacks an entry of the message at {first}",
        meaning="The messages are in the commitlog, but a query by one of their keys does not find them.",
        cause="An unclean start deleted the newest index file, the broker died before it dispatched the messages, or a "
        "file was lost.",
        broker="It adds only what its recovery dispatches again; older entries of a deleted file stay missing.",
        action="Rebuild the index: keys are computed from the log. " + _QUERIES,
    ),
    Code(
        "index-wrong-units", "warning",
        "{count} entries, numbers {first} to {last}, point to no message, or to one without that key", _INDEX_REBUILD,
        one="entry number {first} points to no message, or to one without that key",
        meaning="An entry's hash and position do not belong together: no record starts there, it has other keys, or "
        "the place of the entry is blank.",
        cause="Damage, a page that never reached the disk, or a log that was cut and rewritten.",
        broker="It returns whatever is at that position, or stops the search there.",
        action="Rebuild the index. " + _QUERIES,
    ),
    Code(
        "index-beyond-log", "warning",
        "{count} entries from number {first} to {last} point after the end of the log ({log_end})", _INDEX_REBUILD,
        one="entry number {first} points after the end of the log ({log_end})",
        meaning="The entries point to messages that the log does not hold, or no longer holds.",
        cause="The log was truncated. Brokers truncate queues with it, but never index files.",
        broker="Messages stored later at these positions are not indexed until the log has grown past the last of them.",
        action="Rebuild the index.",
    ),
    Code(
        "index-lost-units", "info",
        "{count} entries from number {first} to {last} point to damaged messages", "",
        one="entry number {first} points to a damaged message",
        meaning="The entry points into a damaged range of the log, or at the marker of a lost message.",
        cause="The damage itself is reported with the commitlog.",
        broker="A query finds nothing at the position.",
        action="Nothing: recover handles the damage itself.",
    ),
    Code(
        "index-wrong-time", "warning",
        "{count} entries from number {first} to {last} differ in time from their message", _INDEX_REBUILD,
        one="entry number {first} differs in time from its message",
        meaning="The difference to the file's begin time does not give the store timestamp of the message.",
        cause="Damage, or a tool that wrote the file.",
        broker="A query with a time span can miss the message.",
        action="Rebuild the index.",
    ),
    Code(
        "index-chain-loop", "warning",
        "{count} entries from number {first} to {last} lead to an entry that is not older: a chain that may never end",
        _INDEX_REBUILD,
        one="entry number {first} leads to an entry that is not older: a chain that may never end",
        meaning="Each entry names the entry before it in its hash slot; a number that is not smaller can form a loop.",
        cause="Damage, or two broker processes that wrote one file.",
        broker="A query that reaches it never ends and occupies a thread; only an entry that names itself is detected.",
        action="Do not query by key before the index is rebuilt.",
    ),
    Code(
        "index-wrong-chain", "warning",
        "{count} entries from number {first} to {last} do not name the previous entry of their slot",
        _INDEX_REBUILD,
        one="entry number {first} does not name the previous entry of its slot",
        meaning="The chain skips entries of its slot, so their messages are not found by key.",
        cause="Damage, or a page that never reached the disk.",
        broker="It follows the chain as it is.",
        action="Rebuild the index.",
    ),
    Code(
        "index-slot-out-of-range", "warning",
        "{count} slots from {first} to {last} name entries that the file does not have", _INDEX_REBUILD,
        one="slot {first} names an entry that the file does not have",
        meaning="The head of a chain is not the number of a used entry.",
        cause="Damage.",
        broker="It takes the slot for empty: nothing of the chain is found, and the next put cuts it off for good.",
        action="Rebuild the index.",
    ),
    Code(
        "index-wrong-slot", "warning",
        "{count} slots from {first} to {last} do not name the newest entry of their chain", _INDEX_REBUILD,
        one="slot {first} does not name the newest entry of its chain",
        meaning="Newer entries of the slot, or all, are not reached by a query.",
        cause="Damage, or a page that never reached the disk.",
        broker="It follows the chain from the wrong head.",
        action="Rebuild the index.",
    ),
    Code(
        "index-count-wrong", "warning",
        "the header counts {header} entries, {written} are written", _INDEX_REBUILD,
        meaning="indexCount is not the number of the next entry.",
        cause="The header's page and the entries' pages did not reach the disk together, or damage.",
        broker="Too small: slots count as empty and entries are overwritten. Too large: the file counts as full, "
        "or puts go after a gap.",
        action="Rebuild the index.",
    ),
    Code(
        "index-header-wrong", "warning",
        "the header's {fields} do not match the first and last entry", _INDEX_REBUILD,
        meaning="Times and positions in the header are those of the first and of the last entry.",
        cause="The header's page did not reach the disk, or damage.",
        broker="Queries by time skip the file; messages below endPhyOffset are not indexed again.",
        action="Rebuild the index.",
    ),
    Code(
        "index-file-length", "warning",
        "the file is {length:byte} long, an index file of {slots} slots and {entries} entries has {expected}",
        _INDEX_REBUILD,
        meaning="An index file has its full length from the start.",
        cause="An incomplete copy, a crash while the file was created, or other sizes configured.",
        broker="It extends a short file with zeros, and uses only a part of a longer one.",
        action="Rebuild the index.",
    ),
    Code(
        "index-sizes-unknown", "warning",
        "the number of slots and entries of the index files is unknown", "Name them: --index-slots N --index-entries N",
        meaning="The length of a file does not determine them, and no file has a sound entry to test them with.",
        cause="All index files are empty, cut or damaged.",
        broker="It uses its configuration (maxHashSlotNum, maxIndexNum).",
        action="Give the sizes, or rebuild the index with them.",
    ),
    Code(
        "index-odd-name", "info",
        "{name} is not an index file ({why})", "",
        meaning="Index files are named by their creation time, in 17 digits.",
        cause="A backup or an editor left it there.",
        broker="It skips a file whose name is not a number, possibly after extending it to the length of an index file; a folder "
        "stops 5.x brokers at start, and on a pipe, socket or device a start can hang or fail.",
        action="`mqtool recover` moves a folder to quarantine; move anything else out of the store.",
        leads="stop",
    ),
    Code(
        "index-unreadable", "error",
        "{wanted:byte} could not be read: {error}", "Check permissions and the disk, then run again.",
        meaning="The content there is unknown; its entries are not checked and not reported as missing.",
        cause="No permission, or a failing disk.",
        broker="It fails to load the file, and 5.x then does not start.",
        action="Copy the store to a sound disk first.",
        bits={"verify": OPERATIONAL},
    ),
    Code(
        "index-newer-than-checkpoint", "info",
        "a start after a crash deletes this index file and {more} more: newer than the checkpoint ({checkpoint:time})",
        "",
        one="a start after a crash deletes this index file: newer than the checkpoint ({checkpoint:time})",
        meaning="The checkpoint's index time is set only when a file is full, so the newest file lies after it.",
        cause="The broker was killed; every version does this.",
        broker="It deletes the files and indexes again only what its recovery dispatches.",
        action="Recover, so that the next start is a clean one.",
    ),
    Code(
        "index-near-empty-files", "info",
        "{count} index files are nearly empty and take {bytes:byte}", "",
        one="one index file is nearly empty and takes {bytes:byte}",
        meaning="A broker starts a new file only when the last one is full, yet these are nearly empty.",
        cause="A known fault of brokers that could not write their last index file.",
        broker="It keeps them until their messages expire; each is mapped at its full size.",
        action="They are safe to delete while the broker is down; a rebuild with --output leaves them out.",
    ),
    Code(
        "index-switched-off", "info",
        "no index file, and the checkpoint has no index time: the index seems to be switched off", "",
        meaning="With messageIndexEnable=false a broker writes no index file.",
        cause="The broker's configuration.",
        broker="Queries by key find nothing.",
        action="Nothing; rebuild-index creates an index if you want one.",
    ),
)


# --- Findings about the checkpoint.


_PAGE = "It records how far log, queues and index were flushed; only a start after an unclean stop uses it."

CHECKPOINT_CODES: tuple[Code, ...] = (
    Code(
        "checkpoint-missing", "warning",
        "the checkpoint is missing; after an unclean stop a broker up to 5.3 would read the whole log again "
        "({log_bytes} bytes) and drop every index file",
        RECOVER,
        meaning=_PAGE,
        cause="It was deleted, or a copy of the store left it out.",
        broker="It creates one of zeros. Up to 5.3 an abnormal recovery then begins at the first file; from 5.4 on at "
        "the tenth newest, and queues that lack older entries stay that way.",
        action="Recover: the times are those of the last record.",
    ),
    Code(
        "checkpoint-short", "warning",
        "the checkpoint is {length:byte} long instead of {expected}; the fields that are cut off count as zero",
        RECOVER,
        meaning="A broker maps one page of 4096 bytes and writes it whole.",
        cause="An incomplete copy, or a crash while the file system was full.",
        broker="It extends the file with zeros and uses these.",
        action="Recover: the file is rewritten.",
    ),
    Code(
        "checkpoint-all-zero", "warning",
        "the checkpoint is all zeros although the log has records; after an unclean stop a broker up to 5.3 "
        "would read the whole log again ({log_bytes} bytes) and drop every index file",
        RECOVER,
        meaning=_PAGE,
        cause="A power cut that reached the file's length but not its content.",
        broker="As without a checkpoint: up to 5.3 recovery begins at the first file, from 5.4 on at the tenth newest.",
        action="Recover: the times are those of the last record.",
    ),
    Code(
        "checkpoint-later-than-log", "warning",
        "the checkpoint's {field} is {value:time}, {ahead_ms:span} after the newest record of the log ({newest:time}); after an "
        "unclean stop a broker would begin too late",
        RECOVER,
        meaning="Nothing can be flushed up to a time at which no record was stored.",
        cause="The log lost its end, the checkpoint is of another store, or its bytes are damaged.",
        broker="An abnormal recovery begins at the newest file that is not younger than the checkpoint, and dispatches "
        "nothing before it to the queues.",
        action="Recover: the times are lowered to the last record's.",
    ),
    Code(
        "checkpoint-impossible-time", "warning", "the checkpoint's {field} is {value}, not a valid time", RECOVER,
        meaning="Times are milliseconds since 1970, or 0 for never.",
        cause="Damaged bytes.",
        broker="An abnormal recovery reads the whole log, or drops the index.",
        action="Recover: the field is rewritten.",
    ),
    Code(
        "checkpoint-offset-no-record", "warning",
        "the checkpoint's logics_physical_offset is {value}, where no record starts (the log ends at {log_end})",
        RECOVER,
        meaning="Since 5.5.0 this field names the last record that has a flushed queue entry.",
        cause="The log was cut after the checkpoint was written, or bytes of it are damaged.",
        broker="5.5 chooses the start file of an abnormal recovery by it alone, and can begin too late.",
        action="Recover: the field is set to the last record, or to 0.",
    ),
    Code(
        "checkpoint-unreadable", "error", "the checkpoint could not be read: {error}",
        "Check the disk and the permissions, or move it out of the store by hand if it is not a file; then: mqtool verify "
        "{store}",
        meaning="The operating system refused to read the file, or a folder, a pipe or the like stands in its place.",
        cause=BAD_DISK,
        broker="It does not start.",
        action="Make the file readable, or move it aside: recover writes a new one.",
        bits={"verify": OPERATIONAL},
    ),
)

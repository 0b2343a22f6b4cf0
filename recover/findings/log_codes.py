"""Findings about the commitlog."""

from __future__ import annotations

from msgspec import Struct

from recover.findings.code import (
    BAD_DISK,
    CLEAN,
    MESSAGES,
    N_,
    OPERATIONAL,
    READ_ON,
    RECOVER,
    UNSUPPORTED,
    Code,
    Remedy,
)

_MEND = Remedy("mend-bits", "mqtool recover {store} --mend-bits --dry-run")
_CUTS = (
    "Its recovery stops at the first bad record of the files it reads: everything after is cut, and later files are "
    "deleted from disk. If its start file lies after the damage it starts and never notices."
)

_AFTER = "{intact_after:; intact message lies after|intact messages lie after}"
ONE_MISSING = N_("the log file {name} is missing{intact_after:; intact message lies after|intact messages lie after}")
FIND_FILES = (
    "Find them: another path (mqtool verify {store} --commitlog LOG --commitlog DIR), the source of this copy, a "
    "replica, a backup. "
)
NO_RETENTION = N_(
    "Find them: another path (mqtool verify {store} --commitlog LOG --commitlog DIR), the source of this copy, a replica, a backup. "
    "Only deletion by hand or a full disk explains that they are missing.")
FIND_WHOLE = Remedy("search", "Look for the whole file first: the source of this copy, a replica, a backup. Without it: mqtool recover {store} "
                    "--dry-run")
NAMELESS = N_("{name} is not the name of a log file, but its first record is that of {right}, which is missing")
STILL_HOLDS = N_(
    "{name} is not a commitlog file (the name is not 20 digits), but still holds {copies} of the messages that are damaged in the log file "
    "of its place: recover copies them")
HALVES = N_(
    "{name} exists in two folders of the commitlog; {kept} is the live one, and the other still holds {copies} of the messages that are "
    "damaged in it: recover copies them")
STANDS_FOR = N_("{name} seems to be a missing log file: renamed, compressed, or an incomplete copy")

COMMITLOG_CODES: tuple[Code, ...] = (
    Code(
        "commitlog-damaged-record", "error",
        "one message at {start} is damaged ({reason}){intact_after:; intact message lies after it|intact messages lie after it}", RECOVER,
        meaning="A complete record with a checksum or a field that differs from what was stored.",
        cause="A flipped bit on disk or in memory, or a torn write.",
        broker=_CUTS,
        action="Do not start the broker. `mqtool recover` bridges the range: nothing after it is lost.",
    ),
    Code(
        "commitlog-flipped-bit", "info",
        "one flipped bit explains the damaged message at {start}: with bit {bit} of byte {position} ({field}) flipped back "
        "({stored} to {right}), all its checksums are right; `recover --mend-bits` restores it",
        _MEND,
        meaning="The error of the checksum identifies the single bit that causes it. Other damage looks the same by chance, in one of "
        "as many cases as `odds` says.",
        cause="A flipped bit on disk or in memory.",
        broker="It sees a wrong checksum, and cuts the log or skips the message.",
        action="Look at the message if you can (`mqtool inspect` on its file and offset), then recover with --mend-bits. "
        "Without it the message counts as lost, and a marker takes its place.",
    ),
    Code(
        "commitlog-flipped-property", "info",
        "the {name} of message {queue_offset} of {topic}/{queue}, at {start}, does not match {witness}: one flipped bit "
        "explains it; with bit {bit} of byte {position} flipped back ({stored} to {right}) it is {value}, and both agree; "
        "`recover --mend-bits` restores it", _MEND,
        meaning="The queue entry holds the hash of the tag as it was stored, index entries hold the hashes "
        "of the keys. Of all single bits of the record's properties only this one restores them. Or a property is the property "
        "CRC but for its name: with it, the checksum is right (then the finding is a warning).",
        cause="A flipped bit on disk or in memory, in a record without a property CRC, or in the name of that.",
        broker="It sends the message to consumers of the old tag, and finds it by the old key; clients then see another one, and "
        "drop it. After a crash, one with forceVerifyPropCRC cuts the log at a message without a property CRC.",
        action="Recover with --mend-bits. Without it queue and index are changed to match the record, and the name of a property CRC stays.",
    ),
    Code(
        "commitlog-contradicted-properties", "error",
        "the properties of message {queue_offset} of {topic}/{queue}, at {start}, are not those that were stored: two of "
        "the tag in its queue entry, the keys in the index and a text that is not UTF-8 say so", "mqtool query {store} --phy-offset {start}",
        meaning="The body is intact, but two of three witnesses contradict the properties: its queue entry has another tag, the index has "
        "other keys, or no client wrote such a text, and no flipped bit explains it. No checksum covers the properties of these records.",
        cause="Foreign bytes on disk, often the beginning of a damaged range right after the record.",
        broker="It does not notice. It sends the message to consumers of the old tag, which see another one, and drop it.",
        action="`mqtool recover` leaves the message as it is, changes queue and index to match it, and states it as a loss; "
        "`mqtool export` gets the body, for sending it again.",
    ),
    Code(
        "commitlog-contradicted-flag", "error",
        "the sysFlags of {count} messages, from {start} on, do not match their bodies (the first says {says}): clients {result}",
        _MEND,
        one="the sysFlag of message {queue_offset} of {topic}/{queue}, at {start}, says {says}, but its body does not match: clients "
        "{result}",
        meaning="A body marked as compressed does not begin like a stream of that type; or a body begins like one, but is not "
        "marked as compressed. No checksum covers the sysFlag of these records.",
        cause="A flipped bit on disk or in memory; or a producer that sets a flag and sends something else.",
        broker="It does not check bodies, and sends the message. A client that cannot decompress it throws, and drops it with "
        "everything after it in the same response.",
        action="`mqtool recover --mend-bits` flips back the bit that `commitlog-flipped-field` names. If none is named, the message stays as it "
        "is, and consumers must be moved past it (set their offset one higher); `mqtool query --phy-offset` shows it.",
    ),
    Code(
        "commitlog-unserved-message", "error",
        "{count} messages of {topic}, from {start} on, lack valid properties that brokers need for delivery: {result}", _MEND,
        one="message {queue_offset} of {topic}/{queue}, at {start}, lacks valid properties that brokers need for delivery, {says}: "
        "{result}",
        meaning="A delayed, timer or half message holds its real topic and queue, and its time, in its properties. "
        "Brokers write these themselves; no checksum covers them in these records.",
        cause="A flipped bit on disk or in memory.",
        broker="It accepts them. 4.9 retries such a delayed message without end, and delivers nothing more of that "
        "level; 4.5 and 5.x drop it. The 5.x timer reads nothing after a message without a valid due time; one "
        "without a valid destination it retries without end, and may hang on it. A transaction cannot be ended.",
        action="`mqtool recover --mend-bits` flips back the bit that `commitlog-flipped-field` names. If none is named, the message stays as it "
        "is: `mqtool query --phy-offset` shows it, for sending it again. To get a 4.9 broker past it: when its level (the queue id plus "
        "one) has reached the message's queue offset in config/delayOffset.json, stop it and write the next offset there. A timer skips "
        "it with timerSkipUnknownError=true in the broker's configuration.",
    ),
    Code(
        "commitlog-flipped-field", "info",
        "one flipped bit explains the {name} of message {queue_offset} of {topic}/{queue}, at {start}: with bit {bit} of byte "
        "{position} flipped back ({stored} to {right}) it is {value}; `recover --mend-bits` restores it", _MEND,
        meaning="Of all values one bit away only this one agrees with the body, or is one that a broker writes there; or "
        "other messages have it, or it names an existing queue.",
        cause="A flipped bit on disk or in memory, in a record without a property CRC.",
        broker="See `commitlog-contradicted-flag` and `commitlog-unserved-message`.",
        action="`mqtool recover --mend-bits` writes the one byte; no checksum covers it, so none has to be updated.",
    ),
    Code(
        "commitlog-damaged-range", "error",
        "no intact record in {bytes:byte} from {start} to {stop} ({reason}){intact_after:; intact message lies after|intact messages lie after}",
        RECOVER,
        meaning="The chain of records breaks here and continues at the end of the range.",
        cause="A page that never reached the disk, a zeroed or overwritten block, a damaged size field.",
        broker=_CUTS,
        action="Do not start the broker. `mqtool recover` bridges the range: nothing after it is lost.",
    ),
    Code(
        "commitlog-damaged-end-mark", "warning",
        "the end mark of the file at {start} is damaged ({reason}); no message is damaged",
        RECOVER,
        meaning="The blank that closes a full log file is invalid. All messages before it are intact.",
        cause="A flipped bit, or a crash between the last record of a file and the next file.",
        broker=_CUTS,
        action="`mqtool recover` rewrites the end mark.",
    ),
    Code(
        "commitlog-missing-file", "error",
        "the log files from {start} to before {stop} are missing" + _AFTER,
        FIND_FILES + "Without them recover refuses, unless --max-loss allows for their messages.",
        meaning="Files between two log files are missing. Or queues, index or checkpoint refer to messages "
        "after the last file, which is full.",
        cause="A file was deleted or not copied, or a disk of a multi-path commitlog is not mounted.",
        broker="It only logs the gap, skips it and continues with the next file; 4.5 to 4.9 can hang there. If the end is "
        "missing, it cuts the queues and reuses their queue offsets.",
        action="Look for the files before anything else: another folder of a multi-path commitlog, the source of the copy, a "
        "replica, a backup. If they are lost for good, `mqtool recover --max-loss N` continues without them: it writes filler where a "
        "file is missing between others, and reports which messages are given up.",
        leads="stop",
    ),
    Code(
        "commitlog-end-missing", "error",
        "the end of the log is missing: at least {count:message} after it were there, by {by}",
        FIND_FILES + "If it is lost for good: mqtool recover {store} --clamp-offsets --dry-run",
        meaning="Consumers have read messages, or index entries name messages, that come after the end of the log, and a second source "
        "confirms it: the checkpoint has a later time, a delay level is ahead, too, or another group has read as far.",
        cause="Log and queues were restored or copied from an earlier moment than the rest, or a power cut took what was not flushed.",
        broker="It starts, and reuses the queue offsets of these messages: groups that are ahead skip the new ones.",
        action="Look for a newer copy of the log: its source, a replica, a backup. If there is none, `mqtool recover --clamp-offsets` lowers "
        "the offsets to the ends of the queues, and states the messages as lost.",
        leads="find",
    ),
    Code(
        "commitlog-begin-missing", "error",
        "the log begins at {start}, and {count:message} before it were not read yet, by {by}; retention has not deleted them: the first "
        "message left ({first:time}) is not {hours} h older than the newest ({newest:time})",
        FIND_FILES + "If they were deleted on purpose, give the broker's retention with --set fileReservedTime=H (here at most {age_hours}).",
        meaning="The log does not begin at 0, no broker with this retention (`fileReservedTime`, 72 h unless stated) deleted the files "
        "before it because of their age, and consumers or delay levels stopped at messages in them.",
        cause="The first files were not copied, a disk of a multi-path commitlog is not mounted, or they were deleted by hand; or a full "
        "disk or a shorter retention than stated let the broker delete them.",
        broker="It starts; these groups continue at the first message left, and never see those before it.",
        action="Look for the files before the broker starts. If they are meant to be gone, confirm it with "
        "`--set fileReservedTime=H`; 0 accepts any first file.",
        leads="find",
    ),
    Code(
        "commitlog-mostly-gone", "error",
        "{messages:message} can be read, but the queues list {lost:message|messages} that are missing, the index "
        "{index_units:entry|entries}: do not start the broker, is this the log's disk?",
        "Look for the log: another disk, a backup, a slave. To continue with what is left: `mqtool recover {store} "
        "--max-loss all --dry-run`",
        meaning="Queues or index point to far more messages than the log holds: the files here are probably not their log.",
        cause="A wrong or empty disk is mounted, a copy stopped half way, or the files were overwritten. Or a broker started on a "
        "wrong path: it began a new log, and deleted the queues; only index files still name the messages.",
        broker="It takes what it can read for the whole log, deletes the rest, and cuts the queues to fit.",
        action="Keep the queues until the log is found. Recover refuses unless --max-loss allows for what is gone.",
        none="the log is unreadable; the queues list {lost:message}, the index {index_units:entry|entries}: do not start the broker, "
        "is this the log's disk?",
        leads="stop",
    ),
    Code(
        "commitlog-foreign", "error",
        "this log file holds no record and does not begin like one, but {lost:message|messages} should be in it: {what}",
        "Find the log file that belongs here: compressed, on another path, in the source of this copy, a replica, a backup. If none does, "
        "move the file out of the store. --max-loss lets recover continue without it.",
        meaning="The file has the name of a log file, and nothing in it was written by a broker.",
        cause="Another program's file, an error page in place of a download, a wrong disk, a compressed or encrypted copy.",
        broker="It finds no record in it: it cuts the log there, or skips the file; if there is no other, it writes its own from the "
        "first byte on.",
        action="Identify the file before any change. Recover refuses until then.",
        leads="stop",
    ),
    Code(
        "commitlog-other-log", "error",
        "the records in this file ({messages}) belong to another log: {witness} name messages in it that it lacks ({lost})",
        "Find the right file: another path, the source of this copy, a replica, a backup. To continue without it: `mqtool recover {store} "
        "--max-loss all --dry-run`",
        one="the record in this file belongs to another log: {witness} name messages in it that it lacks ({lost})",
        meaning="The file has the right name and whole records with the right own offsets, but it is a log file of another broker, or of "
                "another generation of this one. The messages of this store's own file are lost.",
        cause="A copy that mixed two stores, or a disk of another broker.",
        broker="It delivers the other log's messages where queues lead to them; the lost ones cannot be consumed.",
        action="Put the right file in its place. Without it: `mqtool recover --max-loss N` bridges the file and keeps a copy of it.",
        leads="stop",
    ),
    Code(
        "commitlog-file-alone", "info",
        "no queue entry and no index entry names any of the messages of this file ({messages}), and not all their queues continue "
        "in the adjacent files (other messages that the index names there: {indexed})", "",
        meaning="The file has the right name and whole records with the right own offsets. Nothing shows whether they "
                "belong to this log: they may be from another broker.",
        cause="Queues and index that lag behind or are lost; or a copy that mixed two stores.",
        broker="It treats the records as this log's, and dispatches those that its recovery reads.",
        action="If the file may be from elsewhere, compare it with the source of this copy, a replica or a backup. A repair treats its "
               "records as this log's, and says so.",
    ),
    Code(
        "commitlog-unsettled", "error",
        "the parts of the store contradict one another without end: each explanation that outweighed what the log says led to another "
        "one ({accepted} so far); what is reported of the log, its queues and its index may be incomplete", "mqtool explain commitlog-unsettled",
        meaning="Whatever is believed about the log, queues, index and records around it contradict it again. Other findings are those of "
                "the last reading.",
        cause="Parts of several moments or of several stores in one; or a fault of mqtool.",
        broker="It compares nothing: it takes the log by its own rules, and the rest as it is.",
        action="Do not repair the store in place. Take a copy, replace one part after the other from the same source, or leave queues and "
               "index out, and verify the copy. `mqtool report` collects what we need to look at it.",
    ),
    Code(
        "commitlog-torn-tail", "warning",
        "{bytes:byte} after the last record, from {start} on, are not a message ({reason})", RECOVER,
        meaning="The log ends here; what follows is the beginning of a write, or stale bytes.",
        cause="The broker died while it appended. That write was never acknowledged as flushed.",
        broker="It cuts here too, but leaves the bytes on disk, where the next crash can bring them back.",
        action="`mqtool recover` zeroes the bytes and keeps a copy of them.",
    ),
    Code(
        "commitlog-ghosts", "warning",
        "stale records follow a break of the log, from {start} on ({count})", RECOVER,
        one="one stale record follows a break of the log, at {start}",
        meaning="Records of an earlier generation of the log: their queue offsets or times do not continue it.",
        cause="A truncation moved the write position back; the bytes after it stayed on disk.",
        broker="If new records line up with them it takes them for messages again.",
        action="`mqtool recover` zeroes them and keeps a copy. `mqtool query --include-ghosts` shows them.",
    ),
    Code(
        "commitlog-superseded", "info",
        "older records whose queue offsets were reused later, from {start} on ({count})", "",
        one="an older record whose queue offset was reused later, at {start}",
        meaning="A queue restarted its numbering at a lower offset; only the newest generation is in the queue.",
        cause="A broker of 5.0 to 5.3.1 lost its queues and restarted, or the log was truncated and continued.",
        broker="It reads the newest entries only; the older messages cannot be consumed.",
        action="Nothing; export the older messages if you need them.",
    ),
    Code(
        "commitlog-old-end", "warning",
        "the log ends with older records, from {start} on ({count}), and one of their queues ends with a full file", RECOVER,
        one="the log ends with an older record, at {start}, and its queue ends with a full file",
        meaning="The records are of an earlier generation of the log; newer ones are in their places in the queues.",
        cause="The log was cut here once before, and new records ended just where old ones begin.",
        broker="A start dispatches them once more. 5.3.3 and 5.4.0 create the next file of the full queue, write nothing to it, and do not start.",
        action="`mqtool recover` zeroes them and keeps a copy.",
    ),
    Code(
        "commitlog-bad-file-length", "warning",
        "the log file is {length:byte} long, the others {expected}", RECOVER,
        meaning="A broker maps log files at their configured size and refuses another length.",
        cause="A copy that dropped the sparse end, a full disk, or another mappedFileSizeCommitLog.",
        broker="No version starts; from 5.1.3 on a last file of length 0 is deleted instead.",
        action="If messages were cut off, look for the whole file. `mqtool recover` gives the file its full length, and bridges what "
        "was cut off; an empty last file is moved to quarantine.",
        leads="find",
    ),
    Code(
        "commitlog-size-untold", "error",
        "{why}, and no file or setting shows the length of the broker's log files",
        "Find the whole file, or give the broker's configuration (mqtool verify {store} --broker-conf FILE), or the length alone (--set mappedFileSizeCommitLog=N).",
        meaning="A whole log file ends in zeros or with an end mark. The only one here ends within a record, so its length is "
        "not that of the broker's log files; or there are several, and none is as long as the distance between their names.",
        cause="An incomplete copy, a full disk, a cut file, or a file under a wrong name.",
        broker="No version starts on a log file of another length than its mappedFileSizeCommitLog (default 1073741824).",
        action="Look for the whole file first. Without it, give the setting: `mqtool recover` then gives the file its full length.",
        leads="setting",
    ),
    Code(
        "commitlog-odd-name", "warning",
        "{name} is not a commitlog file (the name is not 20 digits)", RECOVER,
        meaning="Log files are named by 20 digits; anything else does not belong there.",
        cause="A backup, an editor or a copy tool left it there.",
        broker="It does not start: the name or the length is refused (from 5.1.0 on, folders are skipped).",
        action="`mqtool recover` moves it to quarantine. A non-empty folder on a separate disk stays, and so does "
        "`abort`: move the folder by hand.",
        leads="stop",
        bits={"start": MESSAGES},
    ),
    Code(
        "commitlog-not-a-file", "error",
        "{name} has the name of a log file, but it is {what}",
        "Put the log file back (is its disk mounted? is it compressed?), or move {file} out of the store by hand; then: mqtool verify {store}",
        meaning="It cannot be read as a log file, so that part of the log is not checked.",
        cause="A link whose disk is not mounted, a folder that a container made for a missing mount, a file that was renamed or compressed.",
        broker="It does not start, or continues without that part (from 5.1.0 on, folders are skipped).",
        action="Repair it by hand: recover and the rebuilds refuse until then.",
        bits={"verify": OPERATIONAL, "start": MESSAGES},
    ),
    Code(
        "commitlog-far-file", "warning",
        "this empty log file is far after the log, which ends at {log_end} in a file with room left", RECOVER,
        meaning="There is no file before it, and none is missing: a broker begins the next file when one is full.",
        cause="A pre-allocated file under a wrong name.",
        broker="It starts, and deletes the file (tried on 4.5.1 to 5.5.0).",
        action="`mqtool recover` moves it to quarantine.",
    ),
    Code(
        "commitlog-duplicate-file", "warning",
        "{name} exists in two folders of the commitlog; {kept} is the live one", RECOVER,
        meaning="Two folders of a multi-path commitlog hold a file of the same name.",
        cause="A file was copied by hand, or created twice when a disk filled up.",
        broker="It loads both, and reads whichever comes first.",
        action="`mqtool recover` copies what only the one with less of the log still has into the other, and quarantines it.",
    ),
    Code(
        "commitlog-first-file-not-zero", "info", "the log begins at {start}: older files have expired", "",
        meaning="A broker deletes old log files from the front.",
        cause="Retention.", broker="Normal.", action="Nothing.",
    ),
    Code(
        "commitlog-begins-late", "warning",
        "the log begins at {start}, but its first message ({first:time}) is not {hours} h older than its newest ({newest:time}), as it "
        "would be if the files before it had expired: were they deleted on purpose, or not copied?",
        FIND_FILES + "If they expired or were deleted on purpose, give the broker's retention with --set fileReservedTime=H (here at most {age_hours}).",
        meaning="The log does not begin at 0, and its first message is younger than `fileReservedTime` (72 h unless --broker-conf or "
        "--set says otherwise) before the newest one: no broker with this retention deleted the files before it because of their age.",
        cause="The first files were not copied, a disk of a multi-path commitlog is not mounted, they were deleted by hand; or a full "
        "disk, a shorter retention or a long idle time let the broker delete them.",
        broker="It starts, and deletes what queues and index have of the messages before the first file.",
        action="Look for the files before the broker starts. If they are meant to be gone, confirm it with "
        "`--set fileReservedTime=H`; 0 accepts any first file. Neither recover nor a rebuild changes anything about it.",
        bits={"start": CLEAN},
    ),
    Code(
        "commitlog-unreadable", "error", "{wanted:byte} could not be read: {error}",
        READ_ON,
        meaning="The operating system refused to read this range; it counts as damaged.",
        cause=BAD_DISK,
        broker="It crashes when it first touches that page.",
        action="Save what can be read: copy the store with a tool that reads on past errors, then work on the copy. Recover refuses "
        "until then: a second try might show intact messages.",
        bits={"verify": OPERATIONAL, "start": UNSUPPORTED},
    ),
    Code(
        "commitlog-bridge", "info",
        "an earlier recover bridged damage here (filler records: {fillers}, markers of lost messages: {markers})", "",
        meaning="mqtool replaced damaged ranges with records that brokers pass over; each marker takes the place of one lost message.",
        cause="An earlier `mqtool recover` of this store.",
        broker="It passes over filler; markers are seen only after a full rebuild of the queues by a broker.",
        action="Nothing. `mqtool journal` shows that run, `mqtool undo` undoes it.",
    ),
    Code(
        "commitlog-contradicted-field", "error",
        "the record at {start} says {field} = {stored}, but its queue shows that it is message {queue_offset} of "
        "{topic}/{queue} ({field} = {told}); `recover --mend-bits` corrects it", _MEND,
        meaning="The record is intact as far as checksums reach, but one field, which none covers, is wrong: at least "
        "two independent witnesses say so, among them the records before and after it in its queue.",
        cause="A flipped bit in the topic, the queue id, the queue offset, the sysFlag, or in the properties that name "
        "LMQ queues.",
        broker="It notices nothing, and delivers the message where its entry is. A rebuild of its queues would put the "
        "message into the wrong place.",
        action="`mqtool recover` keeps or writes the entry of the right place and leaves the record as it is. With "
        "`--mend-bits` it writes the field.",
    ),
    Code(
        "commitlog-unplaced-record", "info",
        "the record at {start} says that it is message {queue_offset} of {topic}/{queue}, where it does not fit; "
        "it is in no queue", "",
        meaning="The record is intact as far as checksums reach, but its number is out of its queue's order, and nothing "
        "shows which one is right.",
        cause="A flipped bit in the queue id, the topic or the queue offset, while the queue's files are gone.",
        broker="A rebuild of its queues puts the message into a wrong place, or over another one.",
        action="`mqtool query --phy-offset` shows the message; send it again if it is needed.",
    ),
    Code(
        "commitlog-number-missing", "info",
        "{topic}/{queue}: the log has no message with the queue offsets {first} to {last} ({count}), and no damage "
        "explains it", "",
        one="{topic}/{queue}: the log has no message with the queue offset {first}, and no damage explains it",
        meaning="Messages of a queue are numbered consecutively, and these numbers are missing between two intact records.",
        cause="A broker that lost entries continued from a wrong number; or records whose topic, queue id or queue offset "
        "was changed.",
        broker="It notices nothing.",
        action="Nothing. Where a record was changed, `commitlog-unplaced-record` may say which.",
    ),
    Code(
        "commitlog-misnamed-file", "warning",
        "the records in this file belong to the file {right}", RECOVER,
        meaning="Every record holds its own log offset, and these offsets do not match the file name.",
        cause="The file was renamed or copied under a wrong name.",
        broker="It trusts the name: entries do not lead to their messages. It does not start if the name is not an offset.",
        action="`mqtool recover` gives the file its right name.",
        bits={"start": MESSAGES},
    ),
    Code(
        "commitlog-displaced-records", "error",
        "{count} intact messages that belong here, from {first} to {last}, are elsewhere: the first one at byte {position} of {source}",
        RECOVER,
        one="an intact message that belongs at {first} is elsewhere: at byte {position} of {source}",
        meaning="Every record holds its own log offset. Bytes of the log that the chain of records does not reach hold whole records of this "
        "place, with right checksums, and queue entries, or the records around them, bear that out.",
        cause="Bytes lost or put in inside the file, a copy in text mode, sectors or the chunks of a RAID in another order, pages written to "
        "another file.",
        broker=_CUTS,
        action="Do not start the broker. `mqtool recover` writes them to their place, and undo reverts that.",
    ),
    Code(
        "commitlog-held-elsewhere", "error",
        "{count} messages from {first} to {last} are damaged or missing here, and intact in {source}", Remedy("recover", "mqtool recover {store} --dry-run --from SOURCE"),
        one="the message at {first} is damaged or missing here, and intact in {source}",
        meaning="A log named with --from has intact records for places of this log that hold none. It is the same log: the records around "
        "them are the same byte for byte, or queues of this store name them.",
        cause="Damage or loss in this store; the other one is a replica or a backup, or was found on the disk.",
        broker=_CUTS,
        action="`mqtool recover --from` writes them to their place, and undo reverts that.",
        bits={"start": MESSAGES},
    ),
    Code(
        "commitlog-unconfirmed-records", "info",
        "{count} intact records claim positions that no message of the log has, with too little evidence", "",
        one="an intact record claims a position that no message of the log has, with too little evidence",
        meaning="Bytes that are not part of the log, or a log named with --from, hold intact records that claim a damaged or missing position. Nothing else "
        "names them there, or other records claim the same place with as much evidence.",
        cause="Remains of another log or of an earlier use of the disk; copies that differ; or queues and index that were lost with the log.",
        broker="It does not see them.",
        action="`mqtool export` of the file that holds them shows them. If the log named with --from is the right one, add `--from-unanchored`.",
    ),
    Code(
        "commitlog-needs-newer-broker", "info",
        "{what} from {start} on: a broker older than {version} would cut the log there", "",
        meaning="The log holds records in a form that older releases do not know, or is in several folders, or the configuration has a blank after its path.",
        cause="The store was written by a newer broker: topics longer than 127 bytes (5.1.0), several folders (4.9.2), IPv6 hosts (4.6.0), a blank after the path (5.2.0).",
        broker="Releases from the named version on read them. Older ones treat the first one as damage, and cut the log there; several folders "
        "they take for one with a comma in its name: they find no log, and delete all queues.",
        action="Do not start an older broker on this store.",
    ),
)


# --- Reasons of damage: why bytes of the log hold no intact record. Damaged ranges and `inspect` name them.


_REST = (
    "The bytes before and after are judged separately: `mqtool verify` reports whether this is a damaged range, a damaged message or "
    "a torn tail, and `mqtool recover` bridges, restores or zeroes it."
)
_REASONS_CUTS = "Its recovery ends here: what follows in the log is cut off."
_PASSES = "Its recovery does not check the field and accepts the record; clients may fail on it."
_BIT = "A flipped bit or an overwritten block."
_REASONS_MEND = "`mqtool inspect FILE --offset N` shows the record with every check. " + _REST


class Reason(Struct, frozen=True):
    """One reason: what it means, how it happens, what a broker does with such bytes, what to do."""

    name: str
    meaning: str
    cause: str = _BIT
    broker: str = _REASONS_CUTS
    action: str = _REASONS_MEND


_ALL = (
    Reason("bad-body-crc", "The body does not match the checksum in the record: the body, or the checksum, was changed.",
           _BIT, "Recovery cuts the log here if it checks bodies (checkCRCOnRecover); otherwise consumers get the wrong body.",
           "If one flipped bit explains it, `mqtool recover --mend-bits` restores the message. " + _REASONS_MEND),
    Reason("bad-property-crc", "The checksum over the record (a property, 5.2.0 and later) does not match: one of its bytes was changed.",
           _BIT, "Releases from 5.2.0 on cut the log here; older ones notice nothing.",
           "If one flipped bit explains it, `mqtool recover --mend-bits` restores the message. " + _REASONS_MEND),
    Reason("bad-magic", "Bytes 4 to 7 are not the magic of a record or of an end mark.",
           "The record before it ends at the wrong place, or the bytes were overwritten."),
    Reason("bad-size", "The size is below that of the smallest record, or larger than the rest of the file."),
    Reason("bad-length-sum", "The lengths of body, topic and properties do not add up to the record's size."),
    Reason("bad-body-length", "The length of the body is negative."),
    Reason("bad-topic", "The topic's length is negative, or its bytes are not a name that brokers accept.", _BIT,
           "If the length is possible, recovery accepts it and creates a queue of that name."),
    Reason("bad-properties", "The properties' length is negative, or the text is not pairs of names and values, or DELAY, INNER_BASE or "
           "INNER_NUM is not a number.", _BIT, "It depends on the release and on what is wrong: it cuts, or reads other properties."),
    Reason("bad-phy-offset", "The log offset in the record is not that of its place.",
           "Bytes of another place or an earlier generation of the log, or a flipped bit.",
           "Only 5.5 with checkCommitLogOffsetOnRecover notices; others read it as a message."),
    Reason("bad-queue-id", "The queue id is negative.", _BIT, _PASSES),
    Reason("bad-queue-offset", "The queue offset is negative.", _BIT, _PASSES),
    Reason("bad-born-port", "The producer's port is negative or above 65535.", _BIT, _PASSES),
    Reason("bad-store-port", "The broker's port is negative or above 65535.", _BIT, _PASSES),
    Reason("bad-blank-size", "The size in the end mark is not the number of bytes left in the file.", _BIT,
           "Releases up to 5.3.1 ignore the size; later ones cut the log here."),
    Reason("blank", "There is an end mark, but the log continues with records."),
    Reason("short", "The bytes end before the record does.",
           "An incomplete copy, a cut file, or a size that leads past the end."),
    Reason("zeroed", "The bytes are zeros, although the log continues after them.",
           "A page that never reached the disk, a gap of a sparse copy, or a trimmed block."),
    Reason("torn-record", "A queue entry names a message here, after the end of the log, but only a part of it was written.",
           "The broker or the machine stopped while the last messages were written."),
    Reason("missing-file", "A whole log file is missing, although files after it exist, or entries name messages in it.",
           "A disk that is not mounted, a copy without it, or a deleted file.",
           "It skips the gap; the messages of the file cannot be consumed.",
           "Find the file: another path, the source of this copy, a replica, a backup. Then `mqtool verify` again."),
    Reason("unreadable", "The operating system refused to read the bytes.", BAD_DISK,
           "It crashes when it first touches that page.", READ_ON),
    Reason("unread", "The bytes were an intact record when they were read again.", "A broker writes to the store.",
           "Nothing.", "Run the command again, on a copy or with the broker stopped."),
    Reason("overwritten", "Older records are here, complete and with the right own offset, but queue entries name other messages here, which "
           "no record of the log holds.", "A write that was lost, or blocks of an older copy or snapshot of the same file.",
           "It treats the stale records as messages and delivers them in place of the lost ones.",
           "`mqtool recover` bridges the range and keeps a copy of them; a replica or a backup may have the messages."),
    Reason("other-log", "The records of this file belong to another log: entries of several queues, or of the index if no queue has any, name "
           "other messages in it, and its records continue no more queues of the adjacent files than they break. Or no entry is left, and it is the only file out of order of time, or with queue offsets that the log has no room for.", "A copy that mixed two stores, or a disk of another broker.",
           "It delivers the other log's messages where queues lead to them.",
           "Put the right file in its place. Without it, `mqtool recover --max-loss N` bridges the file and keeps a copy of it."),
    Reason("ghosts", "Stale records are here, of an earlier generation of the log; they are no longer part of it.",
           "A truncation moved the write position back; the bytes after it stayed on disk.",
           "If new records line up with them it takes them for messages again.",
           "`mqtool recover` zeroes them and keeps a copy; `mqtool query --include-ghosts` shows them."),
)
REASONS: dict[str, Reason] = {reason.name: reason for reason in _ALL}

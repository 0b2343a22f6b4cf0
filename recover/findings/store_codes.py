"""Findings about the rest of a store (config, abort, lock, timer, what is not read), about plans, starts and fleets."""

from __future__ import annotations

from recover.findings.code import BAD_DISK, BY_HAND, MESSAGES, N_, OPERATIONAL, RECOVER, UNSUPPORTED, Code, Remedy

FIND_CONFIG = (
    "Copy it from the source of this copy, a file backup or the other broker of the group. mqtool never invents it: "
    "to continue without it, start the broker and set its content by hand (`mqadmin resetOffsetByTime` for offsets)."
)
TOPICS_GUESSED = Remedy(
    "search",
    "Find it first: the source of this copy, a file backup, the other broker of the group. Otherwise mqtool recover {store} "
    "creates a topics.json from queues and log, marked as a guess; it cannot recreate consumer offsets."
)

_CLAMP = Remedy("clamp", "mqtool recover {store} --clamp-offsets --dry-run")
_REBUILD = Remedy("rebuild", "mqtool rebuild-consumequeue {store} --dry-run")

GUESS = "config-topics-are-a-guess"
"""Of a topics.json that recover made."""
PARTLY_KEPT = "config-partly-kept"
"""Of another config file that recover put together out of what could be read."""
DLEDGER_LOG = N_("log of a DLedger group")
QUEUE_DATABASE = N_("consume queues in RocksDB")
"""Two of the parts that `part-not-supported` names, which decide what else can be done."""

PARTS_CODES: tuple[Code, ...] = (
    Code(
        "abort-present", "warning", "the abort file is present: {detail}", RECOVER,
        meaning="A broker creates this file at the end of its start and removes it at the end of a clean stop.",
        cause="The broker was killed or crashed, or it stopped with messages that were not dispatched yet.",
        broker="It runs its abnormal recovery: it reads the log from the file that the checkpoint suggests, and fills "
        "the queues again.",
        action="`mqtool verify` and `mqtool predict` show what that start would do. Recover removes the file "
        "last, once everything else is right.",
    ),
    Code(
        "broker-running", "info", "the store is locked by {who}; {detail}", "",
        meaning="Byte 0 of the lock file is held, as a running broker does.",
        cause="The broker is running, or another mqtool works on the store.",
        broker="A second broker on this store refuses to start.",
        action="Reading is fine: commands that scan the log check the store as it was when they began. To change the "
        "store, stop the broker first.",
    ),
    Code(
        "commitlog-empty-queues-left", "error",
        "there is no commitlog, but the rest of the store shows that there was one ({queue_files:queue file}, {index_files:index file}): "
        "do not start the broker before the log's disk is mounted",
        "Mount the disk, or name the folder: mqtool verify {store} --commitlog DIR",
        meaning="Queues and index refer to messages, the checkpoint has the time of one, or consumers have committed offsets of them, but "
        "the log that holds them is not where it should be.",
        cause="The disk of the commitlog is not mounted, the path is wrong, or the log was deleted.",
        broker="It starts, deletes all queue files, and begins a new log at offset 0. When the disk comes back, two "
        "logs claim the same offsets.",
        action="Find the log. Only if it is lost for good: move consumequeue/, index/, checkpoint and the offset files of config/ "
        "(*Offset.json, *Offset.json.bak) out of the store.",
        leads="stop",
    ),
    Code(
        "part-not-supported", "warning",
        "{part}: {what} ({detail}); mqtool cannot read it: {not_checked} there are not checked",
        "Judge that part with the broker's own tools before you rely on this report.",
        meaning="The part holds data that mqtool does not read. It was neither found sound nor found damaged. A DLedger "
        "log replaces the whole log from its first file on, so queues, index and checkpoint are not judged either.",
        cause="The broker was configured to keep this data there.",
        broker="It reads the part as usual.",
        action="Everything else was checked. Recover works on the rest and leaves `abort` in place, so that the broker "
        "still runs its own recovery on this part. Recover, truncate and the rebuilds refuse where they would have "
        "to rely on the part, or to write what it holds. A broker on a copy shows whether the part is sound.",
        bits={"verify": UNSUPPORTED},
    ),
    Code(
        "part-missing", "warning", "{part} ({what}) is missing: {problem}",
        "Do not start the broker before you have searched for {part}: another disk, the source of this copy, a backup, a replica.",
        meaning="A setting, topics.json, another file or the log itself says that the part is in use.",
        cause="It was deleted, not copied with the rest, or is on a disk that is not mounted.",
        broker="It silently creates a new, empty one, or does not start: logs and queues of a compacted topic have "
        "to match. Messages that a clean start does not dispatch again are never delivered.",
        action="Restore the part. mqtool does not read its content and cannot recreate it.",
        leads="find",
    ),
    Code(
        "part-damaged", "warning", "{part} ({what}): {problem}",
        "Restore {part} from a backup or a replica before the start. mqtool changes nothing there.",
        meaning="Seen from outside, the part is not complete: of a RocksDB the manifest and the live tables were checked, not "
        "their content.",
        cause="A crash, a copy made while the broker ran, or a failing disk.",
        broker="It does not start if a database cannot be opened. It accepts a manifest that ends too early, and "
        "continues with an older state.",
        action="Restore the part. Databases of queues and index derive from the log; to see how a release rebuilds one, try it on "
        "a copy of the store.",
        leads="find",
    ),
    Code(
        "queue-type-differs", "warning", "{file} holds queues, but topics.json {gives}: no release from 5.0.0 on starts with that",
        "Correct the queue.type of {topic} in config/topics.json, or, if the topic is deleted, move {file} out of the store.",
        meaning="SimpleCQ queues are in consumequeue/, BatchCQ queues in batchconsumequeue/, and the attribute queue.type of the topic in "
        "topics.json names the one or the other.",
        cause="The attribute was changed over existing queues, or topics.json or a queue folder comes from another store.",
        broker="From 5.0.0 on it does not start (ConsumeQueueStore.queueTypeShouldBe); 4.x ignores the attribute.",
        action="Set the type that the queues have: SimpleCQ, or no attribute at all, for a folder in consumequeue/, BatchCQ for one in "
        "batchconsumequeue/. Nothing is wrong with the queues.",
        leads="find",
    ),
    Code(
        "part-unstated", "info",
        "{part} is not here, and no setting says whether it was: with {setting}={value}, {lost} would be lost", "Name the broker's "
        "configuration: --broker-conf FILE",
        meaning="Whether a broker keeps this part, only its configuration says, and none was given. The report assumes that it does not.",
        cause="A store that was copied without the part, or a broker that never had it.",
        broker="With the setting it creates the part anew, and knows nothing of what it held.",
        action="Give the configuration with `--broker-conf`, or the setting with `--set`.",
    ),
    Code(
        "part-recognised", "info", "{part}: {what} ({detail})", "",
        meaning="A part that mqtool knows but has nothing to check in, or only lists.",
        cause="Most of these folders are created by every start, whether they are used or not.",
        broker="Normal.",
        action="Nothing.",
    ),
    Code(
        "file-owner-or-mode", "warning",
        "{count} files or folders in {file} have another owner or mode ({has}) than most ({usual}): {names}",
        "chown {owner} and chmod {mode} on {names}, like the others.",
        one="{names} has another owner or mode ({has}) than most ({usual})",
        meaning="A broker creates all its files with one owner and one mode. Their content was checked as usual. The user of the broker is "
        "taken to be the owner of most files.",
        cause="A copy or a repair as another user, root for instance.",
        broker="It does not start if its user may not open a file of the log, the queues, the index or the timer, checkpoint or lock for "
        "writing, or list a folder; predict then says 4. An index/ that it may not list counts as empty. It reads the backup of a config file that it may not read, and creates no file in a "
        "folder that it may not write to.",
        action="Give the files owner and mode of the others before the start. mqtool changes neither.",
        bits={"start": MESSAGES},
    ),
    Code(
        "part-mounted-read-only", "warning", "{file} is mounted read-only, the folder of the store is not",
        "Find out why (the system remounts a disk with errors read-only), then mount {file} for writing.", bits={"start": MESSAGES}, leads="stop",
        meaning="The file system of this part cannot be written, that of the store's folder can. What is there was checked as usual.",
        cause="A disk error, after which the kernel remounts a file system read-only; an entry of fstab; a mount made for a look at it.",
        broker="It opens files of the log, the queues and the index for writing, and does not start (4.9.7 does beside a read-only index/). With a "
        "read-only config/ it starts, and forgets at its next start what consumers did since.",
        action="Look at the kernel's log first: copy a failing disk before anything else. Then mount it for writing.",
    ),
    Code(
        "part-unreadable", "error", "{part} could not be read: {error}",
        "Check the disk and the permissions, then run again.",
        meaning="The operating system refused to list or read the part.",
        cause=BAD_DISK,
        broker="It does not start, or not without the part.",
        action="Make it readable and run again.",
        bits={"verify": OPERATIONAL},
    ),
    Code(
        "timer-points-beyond-log", "warning",
        "{count} entries of the timerlog, the first at {first}, point after the end of the log ({log_end})", RECOVER,
        one="the timerlog entry at {first} points after the end of the log ({log_end})",
        meaning="The timer would deliver messages that the log does not hold.",
        cause="The log lost its end, or was cut, and the timerlog was not.",
        broker="At the due time it finds nothing there, or another message written since; some releases retry "
        "without end.",
        action="Recover makes the timer's files again from the log: each message that waits is delivered once.",
    ),
    Code(
        "timer-wrong-record", "warning",
        "{count} pending entries of the timerlog, the first at {first}, point where no message of their size starts",
        RECOVER,
        one="the pending timerlog entry at {first} points where no message of its size starts",
        meaning="Log offset or size in the entry differ from every record. The timer message itself may well be intact in the "
        "log; then it is `timer-units-missing`, too.",
        cause="Bit rot in the timerlog, a log that was cut and continued, or a timerlog of another generation of the store.",
        broker="At the due time it reads whatever is there, finds no message of that size, and delivers nothing.",
        action="Recover makes the timer's files again from the log: each message that waits is delivered once.",
    ),
    Code(
        "timer-wrong-units", "warning",
        "{count} entries of the timerlog, the first at {first}, are invalid: their time, chain or kind contradicts the others",
        RECOVER,
        one="the timerlog entry at {first} is invalid: its time, chain or kind contradicts the others",
        meaning="Times are multiples of the timer's precision, a chain has one time and leads backwards, and an entry that "
        "cancels belongs to a message that cancels another.",
        cause="Bit rot in the timerlog.",
        broker="It delivers the message at another time, or not, or loses the rest of the chain.",
        action="Recover makes the timer's files again from the log: each message that waits is delivered once.",
    ),
    Code(
        "timer-units-missing", "warning",
        "{count} pending timer messages, the first at {first} of the log, have no entry in the timerlog (it ends at {end})",
        RECOVER,
        one="the pending timer message at {first} of the log has no entry in the timerlog (it ends at {end})",
        meaning="config/timercheck says that the broker has read them, and they are not due yet. They are intact in the log.",
        cause="The timerlog is missing, was cut, or was not copied with the rest; or config/timercheck is wrong.",
        broker="It never delivers them.",
        action="Recover makes the timer's files again from the log: each message that waits is delivered once.",
    ),
    Code(
        "transaction-table-wrong", "warning", "{part} (transactions of 3.x): {problem} ({count}, the first at {first})", RECOVER,
        meaning="The state table has an entry for each prepared message, at the place that its queue offset names; the redo log names "
        "each prepared message and each end in the order of the log. Both derive from the log.",
        cause="The broker was killed, the files were lost, cut or not copied with the rest, or have flipped bits.",
        broker="After an orderly stop a broker of 3.x believes the table up to its first invalid entry, after a kill it makes the table "
        "again from the redo log. A message without an entry stays half for ever: its producer is not asked. Brokers from 4.3 on "
        "read neither.",
        action="Recover makes both again from the log, each message at its own place, with the state that its end gives it.",
    ),
    Code(
        "timer-check-wrong", "warning", "config/timercheck {problem}", RECOVER,
        meaning="The file says up to what time timer messages were delivered, and how far the timer queue was read.",
        cause="It was not copied with the rest, or has flipped bits.",
        broker="Without it, with a negative time or master offset, with offsets before pending messages that have entries, or with "
        "a time long before the last delivery, messages can be delivered twice. With a time in the future, messages due before then are skipped and never delivered.",
        action="Recover makes the timer's files again from the log: each message that waits is delivered once.",
    ),
    Code(
        "timer-log-stops", "info", "the timerlog stops at {position}: {reason} ({behind} whole entries follow)", "",
        meaning="The bytes there are neither an entry nor an end mark, and not empty. With whole entries after them, it is a warning.",
        cause="A crash while the timerlog was written; bit rot if whole entries follow.",
        broker="It cuts the timerlog there at start, and never delivers messages that only later entries name.",
        action="If no entries follow, nothing. Otherwise recover makes the timer's files again from the log.",
    ),
    Code(
        "timer-log-bad-length", "warning", "{file} is {length:byte} long instead of {expected}", RECOVER,
        meaning="Files of the timerlog have a fixed length, mappedFileSizeTimerLog.",
        cause="An incomplete copy, a full file system, or another setting than the one it was written with.",
        broker="From 5.0.0 on it does not start, unless timerWheelEnable is false.",
        action="Recover makes the timer's files again from the log.",
    ),
    Code(
        "timer-odd-name", "warning", "{name} is not a file of the timerlog", BY_HAND,
        meaning="Files of the timerlog are regular files, named by 20 digits; anything else does not belong in that folder.",
        cause="A backup or an editor left it there.",
        broker="From 5.0.0 on it does not start, unless timerWheelEnable is false. Folders are skipped from 5.1.0 on.",
        action="mqtool changes nothing of the timer. Move the file out of the store by hand.",
        leads="find",
    ),
    Code(
        "timer-wheel-bad-length", "warning", "{name} is {length:byte} long instead of {expected}", RECOVER,
        meaning="The wheel has a fixed length.",
        cause="A crash while the file was created, or an incomplete copy.",
        broker="Unless the length is 0, it does not start.",
        action="Recover makes the timer's files again from the log.",
    ),
    Code(
        "settings-contradict-files", "warning",
        "{setting} is set to {given}, but the files of {file} have {right}: a broker with that setting does not start, or "
        "misreads them",
        "Set {setting}={right} in the broker's configuration, to match its files.",
        meaning="The settings are not those with which the store was written; the files agree with each other.",
        cause="Another broker's configuration, or a size that was changed over an existing store.",
        broker="It refuses files of another length than the setting says, and looks in the wrong slots of index files.",
        action="Correct the configuration. Nothing is wrong with the store, and no repair of it helps.",
        leads="setting",
    ),
    Code(
        "settings-leave-out-size", "info",
        "{conf} does not set {setting}: a broker uses {default}, but the files of {file} say {right}",
        "Set {setting}={right} in the broker's configuration before the start.",
        meaning="With this configuration as it is, the broker would refuse or misread the files.",
        cause="The file is not the one that the broker ran with, or only a part of it.",
        broker="It refuses files of another length than its setting or default, and looks in the wrong slots of index files.",
        action="Add the line, or use the configuration with which the store was written. No repair of the store helps.",
        leads="setting",
        bits={"start": MESSAGES},
    ),
    Code(
        "settings-select-other-queues", "warning",
        "with storeType={given} a broker does not read the {queues} queues in {file}: it begins all of them anew, in RocksDB",
        "Set storeType=default in the broker's configuration, with which the queues were written.",
        meaning="The store has its queues in files, and the setting selects a RocksDB, of which there is none.",
        cause="Another broker's configuration, or a change of the setting over an existing store.",
        broker="From 5.2.0 on it opens an empty database. Consumers get nothing of what was stored before, and new messages get used queue "
        "offsets. Older releases do not know the setting.",
        action="Correct the setting. To move queues into RocksDB, let the broker write both for a while (rocksdbCQDoubleWriteEnable).",
        bits={"start": MESSAGES}, leads="setting",
    ),
    Code(
        "config-other-offsets", "warning",
        "with enableLmq={given} a broker reads {own}, which holds no offset; all offsets of the groups ({count}) are in {other}, and a start "
        "would forget them",
        "Set enableLmq={right} in the broker's configuration, with which {other} was written.",
        meaning="With LMQ queues (enableLmq=true) a broker keeps the offsets of all groups in lmqConsumerOffset.json, without them in "
        "consumerOffset.json, and reads that one file alone.",
        cause="Another broker's configuration, the setting was changed over an existing store, or one of the files was not copied.",
        broker="Each group starts over, at the newest or the oldest message.",
        action="Correct the setting, or find the other file if the setting is right.",
        leads="setting",
        bits={"start": MESSAGES},
    ),
    Code(
        "start-needs-newer-broker", "error",
        "broker {broker} cannot read {what}, which begin at {start} of the log: it would cut the log there",
        "Start release {version} or later on this store.",
        meaning="The store was written by a newer release, in a form that this one does not know.",
        cause="A downgrade of the broker, or a start with the wrong release.",
        broker="It treats the first such record as damage, and cuts the log there.",
        action="Use the release that wrote the store. No repair makes the records readable for older ones.",
        leads="setting",
    ),
    Code(
        "settings-would-truncate", "warning",
        "with {setting} a recovery that comes to {value} cuts the log there: the first of {count} records without {what}",
        "Leave {setting} off until the last log file with such records has expired.",
        one="with {setting} a recovery that comes to {value} cuts the log there: the one record without {what}",
        meaning="The setting makes the recovery refuse records that were stored without this checksum or property.",
        cause="The setting was turned on for a log that was begun without it; or a single record lost its own to "
        "damage. Of duplicationEnable, 5.x requires DUP_INFO, which no released broker writes.",
        broker="Its recovery stops at the first such record that it reads, cuts the log there and deletes later files.",
        action="Do not start with it. `mqtool predict` with the same settings shows what would be lost.",
        leads="setting",
    ),
)


# --- Findings about the files in config/.


_PERSISTED = (
    "A power cut or a crash while the broker wrote the file: up to 5.3 it writes in place and without fsync, and a "
    "shorter text over a longer one leaves the end of the old one."
)
_LOAD = (
    "It silently falls back to the backup. If the backup is missing or empty, it starts with nothing; if "
    "the backup is not valid either, it does not start. From 5.4.0 on a start that succeeds deletes the broken file, so copy it first."
)

CONFIG_CODES: tuple[Code, ...] = (
    Code(
        "config-broken", "warning", "{name} {problem}; {outcome}", RECOVER,
        meaning="The file is not the JSON text that a broker wrote, but a complete text is still there; or the name of its table "
        "has one flipped bit.",
        cause=_PERSISTED + " Or a flipped bit.",
        broker=_LOAD + " It accepts a text without its table, and starts with nothing, whatever the backup has.",
        action="Recover cuts what follows the text, flips back the bit in the table's name, or puts the sound backup in its "
        "place; the broken file is kept in the journal.",
    ),
    Code(
        "config-lost", "warning",
        "{name} {problem} and its backup {backup_problem}; lost: {lost}. {start}",
        Remedy("search", "Put a copy from a file backup or from the other broker of the group into config/. Without one, mqtool recover "
               "{store} keeps what can be read."),
        meaning="Neither the file nor its backup holds a complete text.",
        cause=_PERSISTED + " If it was written twice, the backup is as broken as the file.",
        broker=_LOAD,
        action="Recover keeps every member that can still be read, and removes a backup that would prevent the start. "
        "It never invents offsets.",
        leads="find",
    ),
    Code(
        "config-missing", "warning", "{name} {problem}: {outcome}", RECOVER,
        meaning="The broker had such a file with content: its backup, the other files of config/, the queues or the log "
        "show it. All of config/ is reported in this way if the store holds messages.",
        cause="The store was copied without it, its disk is not mounted, it was removed or emptied, or a crash came between "
        "the two renames of a write.",
        broker="For a missing file it uses the backup if that is sound, and otherwise starts with nothing, as with an empty table. "
        "Without topics.json producers and consumers are refused until the topics are created again; without consumer offsets groups "
        "begin at the newest or at the oldest message.",
        action="Find the file: another path, the source of this copy, a file backup, the other broker of the group. Recover puts a "
        "sound backup in its place, and creates topics.json from queues and log, marked as a guess. It never invents offsets: if "
        "they are gone for good, start the broker and set them by hand.",
        leads="find",
    ),
    Code(
        "config-topics-guessed", "warning", "topics.json {problem} and no complete backup is there; {topics:topic} can "
        "be guessed from the queues and the log: {names}",
        RECOVER,
        meaning="Names come from folders and records, queue numbers from the highest queue in use. Permissions are set "
        "to read and write; queues never used, order flags and attributes cannot be known.",
        cause=_PERSISTED,
        broker=_LOAD,
        action="Recover writes the guess. Compare it with what you know before the start; "
        "`mqadmin updateTopic` corrects single topics.",
    ),
    Code(
        GUESS, "info", "mqtool created this topics.json from queues and log ({topics:topic}); no broker has "
        "written it since", "",
        meaning="An earlier recover found neither a sound topics.json nor a sound backup. Queue numbers are those in use, permissions "
        "are read and write; order flags, attributes and topics without messages are not in it.",
        cause="An earlier `mqtool recover` of this store.",
        broker="It loads the file like its own, and drops the mark when it writes the next one.",
        action="Compare it with what you know before the start; `mqadmin updateTopic` corrects single topics.",
    ),
    Code(
        PARTLY_KEPT, "info", "mqtool kept what could be read of {name} ({count:member}), and no broker has written it since; of "
        "the rest is lost: {lost}", "",
        meaning="An earlier recover found neither a complete file nor a backup with content, and wrote the members that it could read.",
        cause="An earlier `mqtool recover` of this store.",
        broker="It loads the file like its own, and drops the mark when it writes the next one.",
        action="Complete it from a copy before the start, or set what is missing by hand after it (`mqadmin resetOffsetByTime` for "
        "offsets). `mqtool journal` names the run whose saved bytes hold the file as it was.",
    ),
    Code(
        "config-backup-broken", "warning", "{name} is sound, but its backup {problem}", RECOVER,
        meaning="The broker would have nothing to fall back to.",
        cause=_PERSISTED,
        broker="It does not look at the backup while the file itself is sound, and replaces it at the next write.",
        action="Recover makes the backup a copy of the file.",
    ),
    Code(
        "config-unreadable", "error", "{name} could not be read: {error}",
        "Check the disk and the permissions, or move it out of the store by hand if it is not a file; then: mqtool verify "
        "{store}",
        meaning="The operating system refused to read the file, or a folder, a pipe or the like is in its place.",
        cause=BAD_DISK,
        broker="It treats the file as broken.",
        action="Make the file readable and run again; nothing is decided without it.",
        bits={"verify": OPERATIONAL},
    ),
    Code(
        "consumer-offset-above-max", "warning",
        "group {group} of topic {topic}: the offset lies after the end of the queue in {count:queue}: {detail}",
        _CLAMP,
        meaning="The group says it has consumed messages that the queue does not have.",
        cause="The log or the queue lost its end, the topic was recreated, or the file is from another broker.",
        broker="It answers OFFSET_OVERFLOW_BADLY and tells the consumer to continue elsewhere: 4.x to the oldest message "
        "if the queue begins at 0, so that everything is consumed again; later ones to the newest. Until the queue has "
        "grown past the offset, a consumer that does not correct itself misses the new messages.",
        action="Let recover lower the offsets to the end of the queues with --clamp-offsets: what was lost stays lost, "
        "and nothing is consumed twice.",
    ),
    Code(
        "consumer-offset-below-min", "info",
        "group {group} of topic {topic}: the offset lies before the first message left in {count:queue}: "
        "{detail}",
        "",
        meaning="The messages between the offset and the first one left are no longer in the log: their log files expired, or are missing.",
        cause="A group that has not consumed for longer than messages are kept.",
        broker="It moves the consumer to the first message left.",
        action="Nothing.",
    ),
    Code(
        "consumer-offset-unknown-topic", "info", "group {group} has offsets of topic {topic}, which does not exist in this store", "",
        meaning="The topic is in neither topics.json, the queues nor the log.",
        cause="The topic was deleted; its offsets stay in the file.",
        broker="It keeps them. A topic recreated under this name inherits them, and its consumers start too late.",
        action="Nothing, unless the topic will be recreated.",
    ),
    Code(
        "delay-offset-above-max", "warning",
        "delay level {level} was delivered up to {value}, but its queue ends at {end}",
        _CLAMP,
        meaning="delayOffset.json says that delayed messages were delivered that the queue does not have.",
        cause="The log or the queue lost its end, or the file is from another broker.",
        broker="Older releases wait until the queue has grown past the offset, so that new delayed messages of this "
        "level are never delivered; newer ones correct it at start.",
        action="Let recover lower it to the end of the queue with --clamp-offsets.",
    ),
)


# --- Findings about what mqtool itself did to a store.


PLAN_CODES: tuple[Code, ...] = (
    Code(
        "run-unfinished", "warning",
        "the run {run} ({command}) is {state}: {steps_done} of {steps} steps are done, {steps_begun} begun",
        Remedy("resume", "mqtool resume {store}   (or: mqtool undo {store})"),
        meaning="A change of this store began and stopped half way; its journal and the saved bytes are in place.",
        cause="mqtool was killed or interrupted, or the disk failed while it worked.",
        broker="It does not know of the run and would start on a half-changed store.",
        action="Resume it, or undo it, before a broker starts here.",
        bits={"start": MESSAGES},
    ),
    Code(
        "run-journal-damaged", "warning",
        "the journal of an earlier run is unusable: {reason}",
        "",
        meaning="A record of the journal is missing or cannot be read, so the run can be neither resumed nor undone.",
        cause="The disk lost it, or part of the journal folder was edited or copied.",
        broker="It never reads this folder.",
        action="The bytes that the run overwrote are still in its folder; move the folder out of the store to work without it.",
    ),
    Code(
        "plan-loses-delivered", "info",
        "the plan would lose {count:message} that a broker delivers from this store as it is (broker {broker}: alone "
        "{alone:message}, after the plan {after})",
        "`{typed} --max-loss {limit}` accepts the loss; mqtool export {store} -o FILE saves these messages before.",
        meaning="What brokers deliver from the store as it is was compared with what they would deliver after the plan, "
        "by the rules of predict. Messages would be missing, and leaving their bytes and queues as they are does not keep them, so the plan is refused.",
        cause="One damaged record, mark, name or entry was trusted against the rest of the store.",
        broker="It starts on the store as it is and delivers these messages.",
        action="Save a copy of the store. Start the broker on it, or accept the loss with --max-loss.",
    ),
    Code(
        "plan-overwrites-named", "error",
        "a plan was made that overwrites {count} intact messages of whole log files as old ones: the log file before "
        "them may be the wrong one",
        "Look for the right file, in a backup or a replica. `{typed} --max-loss {limit}` accepts the loss.",
        meaning="Whole log files look older than the file before them, and the plan gives them up. But a broker that "
        "cuts its log deletes the files after the cut, so the plan is refused.",
        cause="A log file before them belongs to another store, or its store times are wrong.",
        broker="It may cut the log before these files, and delete them.",
        action="Save a copy of the store. Restore the right file, or accept the loss with --max-loss.",
    ),
)


# --- Findings about what a broker's start would do.


FLEET_CODES: tuple[Code, ...] = (
    Code(
        "fleet-store-problems", "warning", "findings: {findings}, the worst: {worst}",
        "Its rows in the table findings name each; so does mqtool verify on the store.",
        meaning="One of the stores that `mqtool fleet verify` checked has problems; its exit bits are those of this finding.",
        cause="What its findings say.",
        broker="See `mqtool explain` on its worst finding.",
        action="Run `mqtool verify` on the store and follow its next steps. If it is a backup, make another one before the "
        "original is removed.",
    ),
    Code(
        "fleet-store-failed", "error", "not verified: {error}",
        "Run mqtool verify on the store where its files are.",
        meaning="One of the stores was not verified, or changed meanwhile: its state is unknown.",
        cause="No store at that place, no permission, files that change while they are read, other files on a worker than on "
        "the driver, or a process that was killed, for instance by the OOM killer.",
        broker="It is not involved.",
        action="Fix the cause of the error and run again: only stores without a trusted row are read.",
        bits={"verify": OPERATIONAL},
    ),
)

PREDICT_CODES: tuple[Code, ...] = (
    Code(
        "start-refused", "error", "broker {broker} would not start: {reason}", RECOVER,
        meaning="The broker exits, or waits for ever, before it serves clients.",
        cause="A mapped file of another length than the setting says, a stray folder or name among mapped files, a "
        "config file without a usable copy, a size field that asks for more memory than there is, or a gap that "
        "dispatch cannot cross.",
        broker="It logs the cause in store.log or broker.log and exits; 4.5 to 4.9 hang at a gap.",
        action="Repair what the reason names. `mqtool verify` reports what else is wrong.",
    ),
    Code(
        "start-cannot-say", "warning", "broker {broker}: cannot predict {part}",
        "Try the start on a copy of the store.",
        meaning="The answer depends on a part of the store, or on a setting, that predict does not emulate.",
        cause="The log is in a DLedger, queues are in RocksDB or batch queues, or the settings say so. Or a part that predict does not "
        "emulate is damaged or missing (the timer, a RocksDB, a compacted topic), or a pipe or the like is in the place of a file.",
        broker="It reads that part at its start, and its answer can differ from the rest of the prediction.",
        action="Repair or restore the part first if verify reports it. Then copy the store and start a broker on the copy.",
        bits={"verify": UNSUPPORTED},
    ),
    Code(
        "start-loses-messages", "error",
        "broker {broker} would delete {lost:intact message} (cut at {offset_cut}: {reason})",
        "Do not start it. mqtool recover {store} --dry-run",
        meaning="The recovery of a start ends at the first record that fails its check; everything after it is cut off, "
        "and files that begin after it are deleted from disk.",
        cause="Damage in the range that the start reads, a record that this release cannot read, or a setting like "
        "forceVerifyPropCRC over records that were written without it.",
        broker="It logs `recover physics file end` and nothing about a loss.",
        action="`mqtool recover` keeps the messages after the damage.",
    ),
    Code(
        "start-leaves-unreachable", "error",
        "broker {broker} would not deliver {count:message} (no queue entry)",
        _REBUILD,
        meaning="The messages are in the log, but no consumer ever gets them.",
        cause="A start fills queues only from the range that it dispatches; a queue that lost older entries stays short.",
        broker="It notices nothing.",
        action="Rebuild the consume queues before the start.",
    ),
    Code(
        "start-leaves-light-queues", "error",
        "broker {broker} would leave out {count:queue entry|queue entries} of LMQ queues, whose consumers do not get the messages; "
        "consumers of their own topics do",
        _REBUILD,
        meaning="The messages are in the log and in the queues of their own topics; LMQ queues that they name "
                "have no entry of them.",
        cause="The entries are gone, and a start makes none for LMQ queues without enableMultiDispatch=true, or puts "
              "them into other queues without enableLmq=true.",
        broker="It notices nothing.",
        action="Start it with the settings that it had. If it had these, rebuild the consume queues before the start.",
    ),
    Code(
        "start-reuses-offsets", "error",
        "broker {broker} would reuse {count:queue offset} of messages in the log",
        _REBUILD,
        meaning="A queue ends below offsets that its messages carry, so the next messages get them again. Groups that "
        "are ahead skip them.",
        cause="Entries at the end of a queue are missing and the start does not bring them back, or puts others in "
        "their place.",
        broker="5.3.2 and later skip exactly the first undispatched message of a clean start, and put those after it "
        "one place too low.",
        action="Rebuild the consume queues before the start.",
    ),
    Code(
        "start-lowers-queues", "error",
        "broker {broker} would lower the max offset of {count:queue} and reuse {offsets:queue offset}",
        "mqtool verify {store}",
        meaning="Entries at the end of these queues point to messages that the log does not hold. The next messages get their "
        "queue offsets, and groups that consumed the first ones skip them.",
        cause="The end of the log is missing: files that were not copied, a disk that is not mounted, damage that is cut.",
        broker="It silently cuts the queues to fit the log.",
        action="Find the missing end of the log before the start. If it is lost for good, recover states the loss.",
    ),
    Code(
        "start-drops-index", "warning",
        "broker {broker} would delete index files and not index {first} to {last} of the log again",
        Remedy("rebuild", "mqtool rebuild-index {store} after the start, or mqtool recover {store} --dry-run before it"),
        meaning="Queries by key find nothing for messages of that range.",
        cause="After a crash a start deletes every index file that is newer than the checkpoint's index time, and "
        "indexes only what it dispatches.",
        broker="Every start after a crash deletes at least the newest index file.",
        action="Recover removes the abort file once everything is repaired, and then no index file is deleted.",
    ),
    Code(
        "start-forgets-config", "error", "broker {broker} would forget content of {file}: {lost}", FIND_CONFIG,
        meaning="Neither the file nor its backup can be read, or the file is missing or empty although the store shows that it "
        "was not. The broker treats that as an empty one. Or topics.json lacks topics that have messages and queues.",
        cause="A power cut while the file was written; releases before 5.4 write in place. Or a copy without config/.",
        broker="It starts with an empty table, and saves that a few seconds later.",
        action="Recover restores the file from a sound copy, or creates topics.json from queues and log. Consumer offsets come only "
        "from a copy of the file: another path, the source of this copy, a file backup, the other broker of the group.",
        leads="find",
    ),
    Code(
        "start-leaves-waiting", "error", "broker {broker} would not deliver {count:delayed message}, waiting in {where}", "",
        meaning="A delayed message is delivered by the service that keeps it: the levels of messageDelayLevel, or the timer of 5.0.0 and "
        "later.",
        cause="messageDelayLevel is shorter than when the messages were stored, timerWheelEnable=false, or the release is older than 5.0.0.",
        broker="It keeps the messages in its log, delivers none of them, and deletes them with the log files when these expire.",
        action="Start it with the delay levels and the timer with which the messages were stored.",
        leads="setting",
    ),
    Code(
        "start-delivers-again", "warning",
        "broker {broker} would deliver {count:message} a second time ({kinds})",
        "Let consumers expect second copies; mqtool pending {store} lists the messages.",
        meaning="The service that keeps delayed, timer, half or popped messages goes on where its file of offsets says, and that is "
        "behind what the log shows: the message was delivered already, or its producer asked or its transaction committed.",
        cause="A kill: offsets and times are saved every few seconds, op messages of transactions every three. Or config/ is older "
        "than the log, or delayOffset.json, consumerOffset.json or timercheck were lost.",
        broker="It delivers the copies within seconds of its start, and logs nothing of it; half messages at its first check.",
        action="Nothing, if consumers recognise a message by its unique key. The counts are in `delivers`.",
    ),
    Code(
        "start-delivers-overdue", "info",
        "broker {broker} would deliver or ask for {count:overdue message} at once ({kinds})", "",
        meaning="The messages became due while the broker was down. None of them was delivered before.",
        cause="Delayed and timer messages whose time has come, half messages without an answer, popped messages without one.",
        broker="It delivers them within seconds; half messages it stores once more at its first check and asks their producers.",
        action="Nothing; expect the load. `--at` judges another time of start.",
    ),
    Code(
        "start-outlasts-probe", "warning",
        "broker {broker} would take about {seconds} s to start, and the probe allows {limit} s ({mode} recovery, rates of {measured})",
        "Give it a startupProbe that allows more, before it starts.",
        meaning="A probe would kill the broker before its port answers. The store is then one that was not stopped cleanly.",
        cause="Recovery reads the log from its start file on, and after a kill fills queues and index again: that takes as long as "
        "there is log to read. A livenessProbe counts from the start of the container.",
        broker="After each kill it begins again at the same file, and does not come up (apache/rocketmq #9587).",
        action="Set failureThreshold x periodSeconds of a startupProbe above the estimate, twice as high on a slow machine; "
        "`--disk-rate` adds the time of the disk. Or run `mqtool recover` before: after it the start reads the last files only.",
    ),
    Code(
        "start-skips-waiting", "error", "broker {broker} would never deliver {count:waiting message} ({kinds})",
        "Export them before the start: mqtool pending {store} lists them.",
        meaning="The service that keeps the messages goes on behind them, although the log does not hold them as delivered.",
        cause="delayOffset.json or timercheck are ahead: from another time than the log, as after a power cut. Or timers were due more "
        "than a week before the start: brokers do not read so far back.",
        broker="It notices nothing.",
        action="For delays set the offset of the level in delayOffset.json back to the first of them. Messages that an older copy "
        "may have delivered come again then.",
    ),
    Code(
        "start-discards-half", "info",
        "broker {broker} would give up {count:half message} instead of asking the producer ({kinds})",
        "Start it with a larger fileReservedTime and transactionCheckMax, until the producers have answered.",
        meaning="A half message that is older than fileReservedTime, or was asked for transactionCheckMax times, is stored in "
        "TRANS_CHECK_MAX_TIME_TOPIC, and nobody ends its transaction. An error if a setting says so; without one that is an assumption.",
        cause="The broker was down for longer than fileReservedTime, or no producer of the group answered.",
        broker="It gives them up at its first check.",
        action="Set a larger fileReservedTime before the start, or end the transactions by other means.",
        leads="setting",
    ),
    Code(
        "start-expires-files", "error",
        "broker {broker} would delete {count} of {of} log files, {first} to {last}, in the hour of deleteWhen={when}, and at once on a "
        "disk over 75 % full: they have not changed for fileReservedTime={hours} h{default}",
        "Start it with fileReservedTime={keeps} or more, until consumers have the messages.",
        meaning="A broker deletes log files by their last change, intact or not, and consumed or not; only the last file stays. The log "
        "stood still for more than a day, so no broker has deleted them yet.",
        cause="The broker was down, or the store is a copy or a backup whose files kept their times.",
        broker="It deletes them within minutes: in the hour of deleteWhen (04, unless set), and at any hour on a disk that is fuller "
        "than diskMaxUsedSpaceRatio.",
        action="Set a larger fileReservedTime before the start if any consumer still needs the messages, or export them first.",
        leads="setting",
    ),
    Code(
        "start-deletes-files", "info", "broker {broker} would delete {count:file}", "",
        meaning="A start deletes log and queue files after the ends that it found, after a crash index files, and from 5.4.0 on a "
        "config file that it cannot read.",
        cause="Pre-allocated files, everything after a cut, and broken config files.",
        broker="Normal.",
        action="Nothing, unless another finding says what they held.",
    ),
)

"""Findings about the parts around log, queues and index: abort, lock, timer, and what is not read."""

from __future__ import annotations

from recover.finding_code import BIT_UNSUPPORTED, Code

DUE_AGAIN = (
    "The timer cannot be rebuilt. If delayed messages matter more than duplicates, move timerlog, timerwheel* and "
    "config/timercheck aside before the start: the broker then reads its timer queue from the beginning again."
)

PARTS_CODES: tuple[Code, ...] = (
    Code(
        "abort-present", "warning", "the abort file is there: {detail}", "mqtool recover {store}",
        meaning="A broker makes this file at the end of its start and removes it at the end of a clean stop.",
        cause="The broker was killed or crashed, or it stopped with messages that were not dispatched yet.",
        broker="It runs its abnormal recovery: from the file that the checkpoint suggests it reads the log and fills "
        "the queues again.",
        action="Look with `mqtool verify` and `mqtool predict` at what that start would do. Recover removes the file "
        "last, once everything else is right.",
    ),
    Code(
        "broker-running", "info", "the store is locked by {who}; what is read here may change meanwhile", "",
        meaning="Byte 0 of the lock file is held, as a running broker does.",
        cause="The broker is up, or another mqtool is at work on the store.",
        broker="A second broker on this store refuses to start.",
        action="Reading is fine. To change the store, stop the broker first.",
    ),
    Code(
        "commitlog-empty-queues-left", "error",
        "there is no commitlog, but {queue_files} queue files and {index_files} index files are left: do not start the "
        "broker, is the log's disk mounted?",
        "Mount the disk, or name the folder: mqtool verify {store} --commitlog DIR",
        meaning="Queues and index name messages, and the log that holds them is not where it should be.",
        cause="The disk of the commitlog is not mounted, the path is wrong, or the log was deleted.",
        broker="It starts, deletes all queue files, and begins a new log at offset 0. When the disk comes back, two "
        "logs claim the same offsets.",
        action="Find the log. Only if it is gone for good: move consumequeue/ and index/ out of the store.",
    ),
    Code(
        "part-not-supported", "warning",
        "{part}: {what} ({detail}); mqtool cannot read it: {not_checked} there are not checked",
        "Judge that part with the broker's own tools before you rely on this report.",
        meaning="The part holds data that mqtool does not read. It was neither found sound nor found damaged. A DLedger "
        "log stands for all of the log from its first file on, so queues, index and checkpoint are not judged either.",
        cause="The broker was configured to keep this data there.",
        broker="It reads the part as always.",
        action="Everything else was judged. Recover works on the rest and leaves `abort` in place, so that the broker "
        "still runs its own recovery over this part. Recover, truncate and the rebuilds refuse where they would have "
        "to judge by the part, or write what it holds. Whether the part is sound, a broker on a copy shows.",
        bits=BIT_UNSUPPORTED,
    ),
    Code(
        "part-missing", "warning", "{part} ({what}) is not there: {problem}",
        "Do not start the broker before you have looked for {part}: another disk, the source of this copy, a backup, a replica.",
        meaning="A setting, topics.json, another file or the log itself says that the part is in use.",
        cause="It was deleted, not copied with the rest, or lies on a disk that is not mounted.",
        broker="It makes a new, empty one and says nothing, or does not start: of a compacted topic logs and queues have "
        "to match. What a clean start does not dispatch again is never delivered.",
        action="Put the part back. mqtool does not read what it holds, and makes none.",
    ),
    Code(
        "part-damaged", "warning", "{part} ({what}): {problem}",
        "Put {part} back from a backup or a replica before the start. mqtool changes nothing there.",
        meaning="Seen from outside the part is not whole: of a RocksDB the manifest and the live tables were looked at, not "
        "their content.",
        cause="A crash, a copy made while the broker ran, or a failing disk.",
        broker="It does not start where a database cannot be opened. A manifest that ends too early it takes as it is, and "
        "goes on with an older state.",
        action="Restore the part. Databases of queues and index derive from the log; how a release fills one again, try on "
        "a copy of the store.",
    ),
    Code(
        "part-recognised", "info", "{part}: {what} ({detail})", "",
        meaning="A part that mqtool knows but has nothing to judge in, or lists only.",
        cause="Most of these folders are made by every start, whether they are used or not.",
        broker="Normal.",
        action="Nothing.",
    ),
    Code(
        "file-owner-or-mode", "warning",
        "{count} files in {file} have another owner or mode ({has}) than their neighbours ({usual}): {names}",
        "chown {owner} and chmod {mode} on {names}, as their neighbours have it.",
        one="{names} has another owner or mode ({has}) than its neighbours ({usual})",
        meaning="A broker makes all of its files with one owner and one mode. What is in them was checked as always.",
        cause="A copy or a repair as another user, root for instance.",
        broker="It does not start, or cannot write, where its user may not open a file for writing.",
        action="Give the files owner and mode of their neighbours before the start. mqtool changes neither.",
    ),
    Code(
        "part-unreadable", "error", "{part} could not be read: {error}",
        "Check the disk and the permissions, then run again.",
        meaning="The operating system refused to list or read the part.",
        cause="A failing disk, a lost mount, or missing permission.",
        broker="It does not start, or not without the part.",
        action="Make it readable and run again.",
        bits=8,
    ),
    Code(
        "timer-points-beyond-log", "warning",
        "{count} units of the timerlog, the first at {first}, point after the end of the log ({log_end})", DUE_AGAIN,
        one="the unit of the timerlog at {first} points after the end of the log ({log_end})",
        meaning="The timer would deliver messages that the log does not hold.",
        cause="The log lost its end, or was cut, and the timerlog was not.",
        broker="At the due time it finds nothing there, or another message that was written since; some releases try "
        "again without end.",
        action="Nothing that recover could do. Watch the broker's log for the timer's errors after the start.",
    ),
    Code(
        "timer-wrong-record", "warning",
        "{count} pending units of the timerlog, the first at {first}, point where no message of their size starts",
        DUE_AGAIN,
        one="the pending unit of the timerlog at {first} points where no message of its size starts",
        meaning="Log offset or size in the unit differ from every record. The timer message itself may well be intact in the "
        "log; then it is `timer-units-missing`, too.",
        cause="Rotten bits in the timerlog, a log that was cut and written on, or a timerlog of another life of the store.",
        broker="At the due time it reads whatever stands there, finds no message of that size, and delivers nothing.",
        action="Restore the timerlog from a copy, or have the broker read its timer queue again.",
    ),
    Code(
        "timer-wrong-units", "warning",
        "{count} units of the timerlog, the first at {first}, cannot be right: their instant, chain or kind contradicts the others",
        DUE_AGAIN,
        one="the unit of the timerlog at {first} cannot be right: its instant, chain or kind contradicts the others",
        meaning="Instants are whole in the timer's precision, a chain stays at one instant and leads backwards, and a unit that "
        "cancels belongs to a message that says so.",
        cause="Rotten bits in the timerlog.",
        broker="It delivers the message at another time, or not, or loses the rest of the chain.",
        action="Restore the timerlog from a copy, or have the broker read its timer queue again.",
    ),
    Code(
        "timer-units-missing", "warning",
        "{count} pending timer messages, the first at {first} of the log, have no unit in the timerlog (it ends at {end})",
        DUE_AGAIN,
        one="the pending timer message at {first} of the log has no unit in the timerlog (it ends at {end})",
        meaning="config/timercheck says that the broker took them up, and they are not due yet. They are intact in the log.",
        cause="The timerlog is gone, was cut, or was not copied with the rest; or config/timercheck is wrong.",
        broker="It never delivers them.",
        action="Restore the timerlog from a copy, or have the broker read its timer queue again.",
    ),
    Code(
        "timer-check-wrong", "warning", "config/timercheck {problem}",
        "Restore config/timercheck from a copy before the start.",
        meaning="The file says up to what time timer messages were delivered, and how far the timer queue was taken up.",
        cause="It was not copied with the rest, or bits of it are wrong.",
        broker="Without it the timer queue is read from its beginning, and messages can be delivered twice. With a time in the "
        "future what is due before then is passed over, and never delivered.",
        action="Restore it from a copy. Where messages that come twice do less harm than lost ones, move timerlog, timerwheel* and "
        "config/timercheck aside together: the broker then reads its timer queue from the beginning again.",
    ),
    Code(
        "timer-log-stops", "info", "the timerlog stops at {position}: {reason} ({after} whole units follow)", "",
        meaning="What follows is no unit, no end mark and not empty. With whole units after it, it is a warning.",
        cause="A crash while the timerlog was written; rotten bits where whole units follow.",
        broker="It cuts the timerlog there at start, and never delivers what only later units name.",
        action="Without units after it nothing. Else restore the timerlog from a copy, or have the broker read its timer queue again: "
        "move timerlog, timerwheel* and config/timercheck aside.",
    ),
    Code(
        "timer-wheel-bad-length", "warning", "{name} is {length} bytes long instead of {expected}",
        "Move it aside before the start: the broker makes a new one and fills it from the end of the timerlog.",
        meaning="The wheel has a fixed length.",
        cause="A crash while the file was made, or a copy that stopped.",
        broker="With another length than 0 it does not start.",
        action="Move the file aside. Timer messages that the timerlog's last files do not name can be late or lost.",
    ),
    Code(
        "settings-contradict-files", "warning",
        "{setting} is set to {given}, and the files of {file} say {right}: a broker with that setting does not start, or "
        "misreads them",
        "Set {setting}={right} in the broker's configuration, as its files have it.",
        meaning="The settings are not those with which the store was written; the files agree with each other.",
        cause="Another broker's configuration, or a size that was changed over an existing store.",
        broker="It refuses files of another length than the setting says, and looks in the wrong slots of index files.",
        action="Correct the configuration. Nothing is wrong with the store, and no repair of it helps.",
    ),
    Code(
        "start-needs-newer-broker", "error",
        "broker {broker} cannot read {what}, which begin at {start} of the log: it would cut the log there",
        "Start release {version} or later on this store.",
        meaning="The store was written by a newer release, in a form that this one does not know.",
        cause="A downgrade of the broker, or a start with the wrong release.",
        broker="It takes the first such record for damage, and cuts the log there.",
        action="Use the release that wrote the store. No repair makes the records readable for older ones.",
    ),
    Code(
        "settings-would-truncate", "warning",
        "with {setting} a start would cut the log at {value}: the first of {count} records without a property CRC",
        "Leave {setting} off until the last log file with such records has expired.",
        one="with {setting} a start would cut the log at {value}: the one record without a property CRC",
        meaning="The setting makes the recovery refuse records that were stored without this checksum.",
        cause="The setting was turned on over a log that was begun without it.",
        broker="Its recovery stops at the first such record that it reads, cuts the log there and deletes later files.",
        action="Do not start with it. `mqtool predict` with the same settings shows what would be lost.",
    ),
)

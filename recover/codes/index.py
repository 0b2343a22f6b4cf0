"""Findings about index files."""

from __future__ import annotations

from recover.finding_code import BIT_OPERATIONAL, Code

_REBUILD = "mqtool recover {store}   (or: mqtool rebuild-index {store})"
_QUERIES = "Only queries by key, unique key and tag read the index; consuming does not."

INDEX_CODES: tuple[Code, ...] = (
    Code(
        "index-missing-units", "warning",
        "{records} messages from {first} to {last} lack {count} units in the index", _REBUILD,
        meaning="The messages are in the commitlog, but a query by one of their keys does not find them.",
        cause="An unclean start deleted the newest index file, the broker died before it dispatched the messages, or a "
        "file was lost.",
        broker="It fills up only what its recovery dispatches again; units of a deleted file further back stay away.",
        action="Rebuild the index: keys are computed from the log. " + _QUERIES,
    ),
    Code(
        "index-wrong-units", "warning",
        "{count} units from number {first} to {last} name no message, or one that has not that key", _REBUILD,
        meaning="A unit's hash and position do not belong together: no record starts there, it has other keys, or "
        "the place of the unit is blank.",
        cause="Damage, a page that never reached the disk, or a log that was written anew from an earlier place.",
        broker="It returns whatever stands at the position, or stops the search there.",
        action="Rebuild the index. " + _QUERIES,
    ),
    Code(
        "index-beyond-log", "warning",
        "{count} units from number {first} to {last} point behind the end of the log ({log_end})", _REBUILD,
        meaning="The units name messages that the log does not hold (any more).",
        cause="The log was truncated. Brokers truncate queues with it, but never index files.",
        broker="Messages stored later at these positions are not indexed before the log has passed the last one.",
        action="Rebuild the index.",
    ),
    Code(
        "index-lost-units", "info",
        "{count} units from number {first} to {last} name messages that are damaged", "",
        meaning="The unit points into a damaged range of the log, or at a record that stands for a lost message.",
        cause="The damage itself is reported with the commitlog.",
        broker="A query finds nothing at the position.",
        action="Nothing of its own.",
    ),
    Code(
        "index-wrong-time", "warning",
        "{count} units from number {first} to {last} have a time that is not that of their message", _REBUILD,
        meaning="The difference to the file's begin time does not give the store timestamp of the message.",
        cause="Damage, or a tool that wrote the file.",
        broker="A query with a time span can pass over the message.",
        action="Rebuild the index.",
    ),
    Code(
        "index-chain-loop", "warning",
        "{count} units from number {first} to {last} lead to a unit that is not older: a chain that may never end",
        _REBUILD,
        meaning="Each unit names the unit before it in its hash slot; a number that is not smaller can make a circle.",
        cause="Damage, or two broker processes that wrote one file.",
        broker="A query that gets there never ends and keeps a thread busy; only a unit that names itself is noticed.",
        action="Do not query by key before the index is rebuilt.",
    ),
    Code(
        "index-wrong-chain", "warning",
        "{count} units from number {first} to {last} name another unit than the one before them in their slot",
        _REBUILD,
        meaning="The chain skips units of its slot, so their messages are not found by key.",
        cause="Damage, or a page that never reached the disk.",
        broker="It follows the chain as it is.",
        action="Rebuild the index.",
    ),
    Code(
        "index-slot-out-of-range", "warning",
        "{count} slots from {first} to {last} name units that the file does not have", _REBUILD,
        meaning="The head of a chain is no number in use.",
        cause="Damage.",
        broker="It takes the slot for empty: nothing of the chain is found, and the next put cuts it off for good.",
        action="Rebuild the index.",
    ),
    Code(
        "index-wrong-slot", "warning",
        "{count} slots from {first} to {last} do not name the newest unit of their chain", _REBUILD,
        meaning="Newer units of the slot, or all, are not reached by a query.",
        cause="Damage, or a page that never reached the disk.",
        broker="It follows the chain from the wrong head.",
        action="Rebuild the index.",
    ),
    Code(
        "index-count-wrong", "warning",
        "the header counts {header} units, {written} are written", _REBUILD,
        meaning="indexCount is not the number of the next unit.",
        cause="The header's page and the units' pages did not reach the disk together, or damage.",
        broker="Too small: slots count as empty and units are overwritten. Too large: the file counts as full, "
        "or puts go behind a gap.",
        action="Rebuild the index.",
    ),
    Code(
        "index-header-wrong", "warning",
        "the header's {fields} do not fit the first and last unit", _REBUILD,
        meaning="Times and positions in the header are those of the first and of the last unit.",
        cause="The header's page did not reach the disk, or damage.",
        broker="Queries by time pass over the file; messages below endPhyOffset are not indexed again.",
        action="Rebuild the index.",
    ),
    Code(
        "index-file-length", "warning",
        "the file is {length} bytes long, an index file of {slots} slots and {entries} entries has {expected}",
        _REBUILD,
        meaning="An index file has its full length from the start.",
        cause="A copy that stopped, a crash while the file was made, or other sizes configured.",
        broker="It makes a short file longer with zeros, and uses only a part of a longer one.",
        action="Rebuild the index.",
    ),
    Code(
        "index-sizes-unknown", "warning",
        "nothing tells how many slots and entries the index files have", "Say it: --index-slots N --index-entries N",
        meaning="The length of a file does not tell, and no file has a sound unit to try it with.",
        cause="All index files are empty, cut or damaged.",
        broker="It takes its configuration (maxHashSlotNum, maxIndexNum).",
        action="Give the sizes, or rebuild the index with them.",
    ),
    Code(
        "index-odd-name", "info",
        "{name} in the index folder is no index file", "",
        meaning="Index files are named by the time at which they were made, in 17 digits.",
        cause="A backup or an editor left it there.",
        broker="It skips a file whose name is no number, after it may have made it as long as an index file; a folder "
        "stops 5.x brokers at start.",
        action="`mqtool recover` puts a folder aside; move anything else out of the store.",
    ),
    Code(
        "index-unreadable", "error",
        "{wanted} bytes cannot be read: {error}", "Check permissions and the disk, then run again.",
        meaning="What the file holds there is not known; units there are not judged and not reported as missing.",
        cause="No permission, or a failing disk.",
        broker="It fails to load the file, and 5.x then does not start.",
        action="Copy the store to a sound disk first.",
        bits=BIT_OPERATIONAL,
    ),
    Code(
        "index-newer-than-checkpoint", "info",
        "an unclean start deletes this file and {more} more: they end behind the checkpoint's time ({checkpoint})",
        "",
        meaning="The checkpoint's index time is set only when a file became full, so the newest file lies behind it.",
        cause="The broker was killed; every version does this.",
        broker="It deletes the files and indexes again only what its recovery dispatches.",
        action="Recover, so that the next start is a clean one.",
    ),
    Code(
        "index-near-empty-files", "info",
        "{count} index files hold next to nothing and take {bytes} bytes", "",
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
        action="Nothing; rebuild-index makes an index if you want one.",
    ),
)

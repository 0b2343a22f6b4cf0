"""Findings about what a broker's start would do."""

from __future__ import annotations

from recover.finding_code import BIT_UNSUPPORTED, Code

PREDICT_CODES: tuple[Code, ...] = (
    Code(
        "start-refused", "error", "broker {broker} would not start: {reason}", "mqtool recover {store} --dry-run",
        meaning="The broker ends, or waits for ever, before it serves anybody.",
        cause="A mapped file of another length than the setting says, a stray folder or name among mapped files, a "
        "config file without a usable copy, a size field that asks for more memory than there is, or a gap that "
        "dispatch cannot cross.",
        broker="It logs the cause in store.log or broker.log and exits; 4.5 to 4.9 hang at a gap.",
        action="Put right what the reason names. `mqtool verify` says what else is wrong.",
    ),
    Code(
        "start-cannot-say", "warning", "what broker {broker} makes of {part}: mqtool does not emulate it and cannot say",
        "Try the start on a copy of the store.",
        meaning="The answer would need a part of the store, or a setting, that predict does not follow.",
        cause="The store keeps its log in a DLedger, queues in RocksDB or in batch queues, or the settings say so.",
        broker="It starts from that part.",
        action="Take nothing that predict says for the whole answer. Copy the store and start a broker on the copy.",
        bits=BIT_UNSUPPORTED,
    ),
    Code(
        "start-loses-messages", "error",
        "broker {broker} would cut the log at {offset_cut} ({reason}) and lose {lost} intact messages",
        "Do not start it. mqtool recover {store} --dry-run",
        meaning="The recovery of a start ends at the first record that fails its check; everything after is cut off, "
        "and files that begin after it are deleted from disk.",
        cause="Damage in the range that the start reads, a record that this release cannot read, or a setting like "
        "forceVerifyPropCRC over records that were written without it.",
        broker="It says `recover physics file end` and nothing about a loss.",
        action="`mqtool recover` keeps what lies after the damage.",
    ),
    Code(
        "start-leaves-unreachable", "error",
        "broker {broker} would leave {count} messages in the log without a queue unit that leads to them",
        "mqtool rebuild-consumequeue {store} --dry-run",
        one="broker {broker} would leave one message in the log without a queue unit that leads to it",
        meaning="The messages are in the log, but no consumer ever gets them.",
        cause="A start fills queues only from the range that it dispatches; a queue that lost older units stays short.",
        broker="It notices nothing.",
        action="Rebuild the consume queues before the start.",
    ),
    Code(
        "start-reuses-offsets", "error",
        "broker {broker} would give new messages {count} queue offsets that messages in the log already have",
        "mqtool rebuild-consumequeue {store} --dry-run",
        one="broker {broker} would give a new message a queue offset that a message in the log already has",
        meaning="A queue ends below offsets that its messages carry, so the next messages get them again. Groups that "
        "are ahead skip them.",
        cause="Units at the end of a queue are missing and the start does not bring them back, or puts others in "
        "their place.",
        broker="5.3.2 and later skip exactly the first undispatched message of a clean start, and put those after it "
        "one place too low.",
        action="Rebuild the consume queues before the start.",
    ),
    Code(
        "start-lowers-queues", "error",
        "broker {broker} would end {count} queues below where they end now, and give {offsets} queue offsets out again",
        "mqtool verify {store}",
        one="broker {broker} would end one queue below where it ends now, and give {offsets} queue offsets out again",
        meaning="Units at the end of these queues name messages that the log does not hold. The next messages get their "
        "queue offsets, and groups that consumed the first ones skip them.",
        cause="The end of the log is missing: files that were not copied, a disk that is not mounted, damage that is cut.",
        broker="It cuts the queues to fit the log, and says nothing.",
        action="Find the missing end of the log before the start. If it is gone for good, recover states the loss.",
    ),
    Code(
        "start-drops-index", "warning",
        "broker {broker} would delete index files and not index {first} to {last} of the log again",
        "mqtool rebuild-index {store} after the start, or mqtool recover {store} before it",
        meaning="Queries by key find nothing for messages of that range.",
        cause="After a crash a start deletes every index file that is newer than the checkpoint's index time, and "
        "indexes only what it dispatches.",
        broker="Every start after a crash deletes at least the newest index file.",
        action="Recover removes the abort file once everything is right, and then no index file is deleted.",
    ),
    Code(
        "start-forgets-config", "error", "broker {broker} would start without what {file} held: {lost}",
        "mqtool verify {store}",
        meaning="Neither the file nor its backup can be read, or the file is missing or empty although the store shows that it "
        "was not. The broker takes that for an empty one.",
        cause="A power cut while the file was written; releases before 5.4 write in place. Or a copy without config/.",
        broker="It starts with an empty table, and saves that a few seconds later.",
        action="Recover restores the file from a sound copy, or makes topics.json from queues and log. Consumer offsets come only "
        "from a copy of the file: another path, the source of this copy, a file backup, the other broker of the group.",
    ),
    Code(
        "start-deletes-files", "info", "broker {broker} would delete {count} files", "",
        one="broker {broker} would delete one file",
        meaning="A start deletes log and queue files after the ends that it found, and after a crash index files.",
        cause="Pre-allocated files, and whatever lies after a cut.",
        broker="Normal.",
        action="Nothing, unless another finding says what they held.",
    ),
)

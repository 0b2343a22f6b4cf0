"""Findings about the files in config/."""

from __future__ import annotations

from recover.finding_code import Code

_RECOVER = "mqtool recover {store}"
_PERSISTED = (
    "A power cut or a crash while the broker wrote the file: up to 5.3 it writes in place and without fsync, and a "
    "shorter text over a longer one leaves the end of the old one."
)
_LOAD = (
    "It falls back to the backup without a word. Where the backup is missing or empty it starts with nothing; where "
    "the backup is no text either it does not start. From 5.4 on it also deletes the broken file, so copy it first."
)

CONFIG_CODES: tuple[Code, ...] = (
    Code(
        "config-broken", "warning", "{name} {problem}; {outcome}", _RECOVER,
        meaning="The file is not the JSON text that a broker wrote, but a whole text is still there; or the name of its table "
        "is one bit away from what it should be.",
        cause=_PERSISTED + " Or a flipped bit.",
        broker=_LOAD + " A text without its table it takes as it is, and starts with nothing, whatever the backup has.",
        action="Recover cuts what follows the text, turns back the bit in the table's name, or puts the sound backup in its "
        "place; the broken file is kept in the journal.",
    ),
    Code(
        "config-lost", "warning",
        "{name} {problem} and its backup {backup_problem}: lost is {lost}. {start}",
        "Put a copy from a file backup or from the other broker of the group into config/, or accept the loss and move "
        "{name} out of the store.",
        meaning="Neither the file nor its backup holds a whole text.",
        cause=_PERSISTED + " When it was written twice, the backup is as broken as the file.",
        broker=_LOAD,
        action="Recover keeps every member that can still be read, and takes a backup away that would stop the start. "
        "It never makes up offsets.",
    ),
    Code(
        "config-missing", "warning", "{name} {problem}: {outcome}", _RECOVER,
        meaning="The broker had such a file, with something in it: its backup, the other files of config/, the queues or the log "
        "show so. The same is said of all of config/ where the store holds messages.",
        cause="The store was copied without it, its disk is not mounted, somebody removed or emptied it, or a crash came between "
        "the two renames of a write.",
        broker="Of a missing file it takes the backup if that is sound, and else starts with nothing, as with an empty table. "
        "Without topics.json producers and consumers are refused until the topics are made again; without consumer offsets groups "
        "begin at the newest or at the oldest message.",
        action="Find the file: another path, the source of this copy, a file backup, the other broker of the group. Recover puts a "
        "sound backup in its place, and makes topics.json from queues and log, marked as a guess. It never makes up offsets: where "
        "they are gone for good, start the broker and set them by hand.",
    ),
    Code(
        "config-topics-guessed", "warning", "topics.json {problem} and no sound backup is there; {topics} topics can "
        "be guessed from the queues and the log: {names}",
        _RECOVER,
        meaning="Names come from folders and records, queue numbers from the highest queue in use. Permissions are set "
        "to read and write; queues never used, order flags and attributes cannot be known.",
        cause=_PERSISTED,
        broker=_LOAD,
        action="Recover writes the guess. Compare it with what you know before the start; "
        "`mqadmin updateTopic` mends single topics.",
    ),
    Code(
        "config-backup-broken", "warning", "{name} is sound, but its backup {problem}", _RECOVER,
        meaning="The broker would have nothing to fall back to.",
        cause=_PERSISTED,
        broker="It does not look at the backup while the file itself is sound, and replaces it at the next write.",
        action="Recover makes the backup a copy of the file.",
    ),
    Code(
        "config-unreadable", "error", "{name} could not be read: {error}",
        "Check the disk and the permissions, then run again.",
        meaning="The operating system refused to read the file.",
        cause="A failing disk, a lost mount, or missing permission.",
        broker="It treats the file as broken.",
        action="Make the file readable and run again; nothing is decided without it.",
        bits=8,
    ),
    Code(
        "consumer-offset-above-max", "warning",
        "group {group} of topic {topic}: the offset lies after the end of the queue in {count} queues: {detail}",
        "mqtool recover {store} --clamp-offsets",
        one="group {group} of topic {topic}: the offset lies after the end of the queue in one queue: {detail}",
        meaning="The group says it has consumed messages that the queue does not have.",
        cause="The log or the queue lost its end, the topic was made again, or the file is of another broker.",
        broker="It answers OFFSET_OVERFLOW_BADLY and tells the consumer to go on elsewhere: 4.x to the oldest message "
        "if the queue begins at 0, so that everything is consumed again; later ones to the newest. Until the queue has "
        "grown past the offset, a consumer that does not correct itself misses the new messages.",
        action="Let recover lower the offsets to the end of the queues with --clamp-offsets: what was lost stays lost, "
        "and nothing is consumed twice.",
    ),
    Code(
        "consumer-offset-below-min", "info",
        "group {group} of topic {topic}: the offset lies before the first message left in {count} queues: "
        "{detail}",
        "",
        one="group {group} of topic {topic}: the offset lies before the first message left in one queue: {detail}",
        meaning="The messages between the offset and the first one left have expired with their log files.",
        cause="A group that has not consumed for longer than messages are kept.",
        broker="It moves the consumer to the first message left.",
        action="Nothing.",
    ),
    Code(
        "consumer-offset-unknown-topic", "info", "group {group} has offsets of topic {topic}, which is not here", "",
        meaning="Neither topics.json nor the queues nor the log know the topic.",
        cause="The topic was deleted; its offsets stay in the file.",
        broker="It keeps them. A topic made again under this name inherits them, and its consumers begin too late.",
        action="Nothing, unless the topic is to be made again.",
    ),
    Code(
        "delay-offset-above-max", "warning",
        "delay level {level} was delivered up to {value}, but its queue ends at {end}",
        "mqtool recover {store} --clamp-offsets",
        meaning="delayOffset.json says that delayed messages were delivered that the queue does not have.",
        cause="The log or the queue lost its end, or the file is of another broker.",
        broker="Older releases wait until the queue has grown past the offset, so that new delayed messages of this "
        "level are never delivered; newer ones correct it at start.",
        action="Let recover lower it to the end of the queue with --clamp-offsets.",
    ),
)

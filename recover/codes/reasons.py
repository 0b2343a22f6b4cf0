"""Reasons of damage: why bytes of the log hold no intact record. Damaged ranges and `inspect` name them."""

from __future__ import annotations

from msgspec import Struct

_REST = (
    "The bytes before and after are judged on their own: `mqtool verify` says whether this is a damaged range, a damaged message or "
    "a torn tail, and `mqtool recover` bridges, restores or zeroes it."
)
_CUTS = "Its recovery ends here: what follows in the log is cut off."
_PASSES = "Its recovery does not look at the field and passes over the record; clients may fail on it."
_BIT = "A flipped bit or an overwritten block."
_MEND = "`mqtool inspect FILE --offset N` shows the record with every check. " + _REST


class Reason(Struct, frozen=True):
    """One reason: what it means, how it happens, what a broker does with such bytes, what to do."""

    name: str
    meaning: str
    cause: str = _BIT
    broker: str = _CUTS
    action: str = _MEND


_ALL = (
    Reason("bad-body-crc", "The checksum of the body is not the one that the record says: the body, or the checksum, was changed.",
           _BIT, "Recovery cuts the log here where it looks at bodies (checkCRCOnRecover); otherwise consumers get the wrong body.",
           "Where one flipped bit explains it, `mqtool recover --mend-bits` restores the message. " + _MEND),
    Reason("bad-property-crc", "The checksum over the record (a property, 5.2.0 and later) does not fit: any of its bytes was changed.",
           _BIT, "Releases from 5.2.0 on cut the log here; older ones notice nothing.",
           "Where one flipped bit explains it, `mqtool recover --mend-bits` restores the message. " + _MEND),
    Reason("bad-magic", "Bytes 4 to 7 are not the magic of a record or of an end mark.",
           "The record before ends elsewhere than it should, or the bytes were overwritten."),
    Reason("bad-size", "The size is below that of the smallest record, or larger than the rest of the file."),
    Reason("bad-length-sum", "The lengths of body, topic and properties do not add up to the record's size."),
    Reason("bad-body-length", "The length of the body is negative."),
    Reason("bad-topic", "The topic's length is negative, or its bytes are not a name that brokers accept.", _BIT,
           "With a possible length recovery passes over it and makes a queue of that name."),
    Reason("bad-properties", "The properties' length is negative, or the text is not pairs of names and values, or DELAY, INNER_BASE or "
           "INNER_NUM is not a number.", _BIT, "It depends on the release and on what is wrong: it cuts, or reads other properties."),
    Reason("bad-phy-offset", "The record says that it stands at another offset of the log.",
           "Bytes of another place or an earlier life of the log, or a flipped bit.",
           "Only 5.5 with checkCommitLogOffsetOnRecover notices; others read it as a message."),
    Reason("bad-queue-id", "The queue id is negative.", _BIT, _PASSES),
    Reason("bad-queue-offset", "The queue offset is negative.", _BIT, _PASSES),
    Reason("bad-born-timestamp", "The born time is 0 or negative.", _BIT, _PASSES),
    Reason("bad-store-timestamp", "The store time is 0 or negative.", _BIT, _PASSES),
    Reason("bad-born-port", "The producer's port is negative or above 65535.", _BIT, _PASSES),
    Reason("bad-store-port", "The broker's port is negative or above 65535.", _BIT, _PASSES),
    Reason("bad-blank-size", "The end mark of a file does not name the bytes that are left of it.", _BIT,
           "Releases up to 5.3.1 ignore the size; later ones cut the log here."),
    Reason("blank", "An end mark stands where the log goes on with records."),
    Reason("short", "The bytes end before the record does.",
           "A copy that stopped, a cut file, or a size that leads past the end."),
    Reason("zeroed", "The bytes are zeros, although the log goes on after them.",
           "A page that never reached the disk, a gap of a sparse copy, or a trimmed block."),
    Reason("torn-record", "A queue unit names a message here, after the end of the log, and only a part of it was written.",
           "The broker or the machine stopped while the last messages were written."),
    Reason("missing-file", "A whole file of the log is not there, although files after it are, or units name messages of it.",
           "A disk that is not mounted, a copy without it, or a deleted file.",
           "It passes over the gap; what the file held cannot be consumed.",
           "Find the file: another path, the source of this copy, a replica, a backup. Then `mqtool verify` again."),
    Reason("unreadable", "The operating system refused to read the bytes.", "A failing disk, a lost mount, or missing permission.",
           "It dies at the first touch of that page.", "Check the disk; copy what can be read elsewhere first."),
    Reason("unread", "The bytes were a record by the time that they were looked at again.", "A broker writes to the store.",
           "Nothing.", "Run the command again, on a copy or with the broker stopped."),
    Reason("overwritten", "Older records stand here, whole and with the right own offset, but queue units name other messages here, which "
           "no record of the log holds.", "A write that was lost, or blocks of an older copy or snapshot of the same file.",
           "It takes the old records for messages and delivers them in place of those that are lost.",
           "`mqtool recover` bridges the range and keeps a copy of the old records; a replica or a backup may have the messages."),
    Reason("other-log", "The records of this file are another log's: units of several queues name other messages in it, and its records "
           "continue no queue of the files beside it.", "A copy that mixed two stores, or a disk of another broker.",
           "It delivers the other log's messages where queues lead to them.",
           "Put the right file in its place. Without it, `mqtool recover --max-loss N` bridges the file and keeps a copy of it."),
    Reason("ghosts", "Old records stand here, of an earlier life of the log; they are not part of it any more.",
           "A truncation moved the write position back; the bytes after it stayed on disk.",
           "If new records line up with them it takes them for messages again.",
           "`mqtool recover` zeroes them and keeps a copy; `mqtool query --include-ghosts` shows them."),
)
REASONS: dict[str, Reason] = {reason.name: reason for reason in _ALL}

"""Dispatch after recovery: ReputMessageService.doReput, until it has caught up or cannot go on."""

from __future__ import annotations

from recover.broker.record_check import CheckRules, check_message
from recover.broker.recovery import DispatchTarget, Runs, end_of
from recover.predict.broker_log import BrokerLog


def reput(log: BrokerLog, start: int, end: int, rules: CheckRules, target: DispatchTarget) -> int | None:
    """Dispatch the log from physical `start` to its `end`; the offset at which it is stuck for ever, or None.

    A master is assumed: a record that cannot be read makes it jump over the rest of the file.
    """
    position = max(start, log.min_offset)
    while position < end:
        index = log.index_of(position)
        if index is None:
            return position
        base = log.files[index].file_from_offset
        readable = min(end - base, log.file_size)
        if position - base >= readable:
            return position
        position = _Range(log, index, readable, rules, target).read(position)
    return None


class _Range:
    """What one `getData` returns: the rest of one file. The broker keeps three positions, and so do we."""

    def __init__(self, log: BrokerLog, index: int, readable: int, rules: CheckRules, target: DispatchTarget) -> None:
        self.base = log.files[index].file_from_offset
        self.file_size = log.file_size
        self.readable = readable
        self.rules = rules
        self.target = target
        self.runs = Runs(log.rows(index), rules)
        self.bytes_at = log.read_at(index)

    def read(self, reput_from: int) -> int:
        """Where dispatch goes on after this range."""
        at = reput_from - self.base
        size = self.readable - at
        read_size = 0
        while read_size < size:
            run = self.runs.at(self.base + at, self.base + self.readable)
            if run.size:
                self.target.rows(run)
                step = end_of(run) - self.base - at
                at, read_size, reput_from = at + step, read_size + step, reput_from + step
                continue
            message = check_message(self.bytes_at, at, self.readable, self.rules)
            if message.ok and message.size == 0:
                return reput_from + self.file_size - reput_from % self.file_size
            if message.ok:
                self.target.checked(message)
                at, read_size, reput_from = at + message.size, read_size + message.size, reput_from + message.size
            elif message.size > 0:
                # the buffer stands after the fields that were read, the offset after the size that was claimed
                at, reput_from = at + message.consumed, reput_from + message.size
            else:
                return reput_from + size - read_size
        return reput_from

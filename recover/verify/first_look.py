"""Findings of `inspect`: what can be said of a store's parts before its log is read. The same codes as verify's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from formats.checkpoint import CHECKPOINT, FILE_SIZE
from recover.files.reader import read_small
from recover.files.store import CHECKPOINT as CHECKPOINT_FILE
from recover.files.store import COMMITLOG, Store
from recover.files.topics import Topics
from recover.files.unread import held_elsewhere
from recover.findings import Finding, finding
from recover.inspect_store.report import StoreReport
from recover.verify.config import judged_pairs, pair_findings
from recover.verify.parts import (
    check_other_parts,
    check_owners,
    contradicted_settings,
    earlier_runs,
    lock_findings,
    log_is_gone,
)


def first_findings(store: Store, report: StoreReport) -> list[Finding]:
    """What is wrong with what `inspect` shows. `OSError` where a folder cannot be listed."""
    found = [*lock_findings(store, report.exit_state.holder), *log_is_gone(store)]
    found += [*earlier_runs(store), *check_owners(store)]
    found += contradicted_settings(store, store.options.settings)
    found += _gaps(report)
    found += _checkpoint(store, report)
    topics = Topics(store)
    found += pair_findings(store, topics, None, judged_pairs(store, topics, None))
    others = check_other_parts(store, held_elsewhere(store), {}, None)
    return found + [item for item in others if item.severity != "info"]


def _gaps(report: StoreReport) -> Iterator[Finding]:
    for start, stop in report.gaps:
        yield finding("commitlog-missing-file", COMMITLOG, None, start=start, stop=stop, bytes=stop - start,
                      intact_after="not counted:")


def _checkpoint(store: Store, report: StoreReport) -> Iterator[Finding]:
    if report.pointers.log_end == report.pointers.min_offset:
        return
    facts: dict[str, Any] = {"log_bytes": report.pointers.log_end - report.pointers.min_offset}
    try:
        content = read_small(store.checkpoint_path, FILE_SIZE)
    except FileNotFoundError:
        yield finding("checkpoint-missing", CHECKPOINT_FILE, None, **facts)
    except OSError as error:
        yield finding("checkpoint-unreadable", CHECKPOINT_FILE, None, error=error.strerror)
    else:
        if len(content) < FILE_SIZE:
            yield finding("checkpoint-short", CHECKPOINT_FILE, len(content), length=len(content), expected=FILE_SIZE,
                          cut_fields=len(content) < CHECKPOINT.size, **facts)

"""Everything that changes a disk, and nothing else does.

Each operation passes one fault point just before it happens (`set_hook`), so a test can stop the process there, make
the operation fail, or record the sequence and replay parts of it. Errors are `OSError`, unchanged: what an error means
for a plan is decided by the callers.
"""

from __future__ import annotations

from recover.disk.content import (
    Operation,
    append,
    create_file,
    create_from_pieces,
    punch_holes,
    set_hook,
    truncate,
    write_range,
    zero_range,
)
from recover.disk.copies import copy_file, copy_into_place, create_locked, open_for_lock
from recover.disk.names import (
    copy_metadata,
    copy_xattrs,
    fsync,
    fsync_dir,
    link,
    mkdir,
    remove_tree,
    rename,
    rmdir,
    set_metadata,
    set_owner,
    set_times,
    sync_all,
    unlink,
)

__all__ = [
    "Operation", "append", "copy_file", "copy_into_place", "copy_metadata", "copy_xattrs", "create_file",
    "create_from_pieces", "create_locked", "fsync", "fsync_dir", "link", "mkdir", "open_for_lock", "punch_holes",
    "remove_tree", "rename", "rmdir", "set_hook", "set_metadata", "set_owner", "set_times", "sync_all", "truncate",
    "unlink", "write_range", "zero_range",
]

"""One bit of a record that no checksum covers, and that something else tells to be wrong."""

from __future__ import annotations

from msgspec import Struct

from formats.commitlog import Record, encode
from recover.files.mapped_files import MappedFile

SYS_FLAG = "sysFlag"


class WrongBit(Struct, frozen=True):
    """Bit `bit` of byte `position` of a record was flipped, if it was `right`; `stored` is what the log has now.

    The `witness` tells that. `was_rejected`: nobody can read the message as it is.
    """

    mapped_file: MappedFile
    witness: str
    stored: Record
    right: Record
    position: int
    bit: int
    was_rejected: bool = False

    @property
    def name(self) -> str:
        """The property that differs, of two the one that it was; or SYS_FLAG."""
        if self.stored.sys_flag != self.right.sys_flag:
            return SYS_FLAG
        stored, right = self.stored.property_map(), self.right.property_map()
        return next((name for name in right if stored.get(name) != right[name]), "")

    @property
    def value(self) -> str:
        """What was in that field."""
        return self._of(self.right)

    @property
    def before(self) -> str:
        """What is in that field now, "" where it is a property without its name."""
        return self._of(self.stored)

    def _of(self, record: Record) -> str:
        return f"{record.sys_flag:#x}" if self.name == SYS_FLAG else record.get_property(self.name) or ""

    @property
    def content(self) -> tuple[int, int]:
        """The byte as it is, and as it was."""
        stored, right = encode(self.stored), encode(self.right)
        return stored[self.position], right[self.position]

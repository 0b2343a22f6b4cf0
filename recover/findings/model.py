"""Findings as values, and the list that merges and counts them."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any
from urllib.parse import parse_qs

from msgspec import Struct, field, structs, to_builtins

from recover.findings.code import OF_SEVERITY, Code, Question, RepairedBy, Severity, by_of
from recover.findings.derived_codes import CHECKPOINT_CODES, CONSUMEQUEUE_CODES, INDEX_CODES
from recover.findings.log_codes import COMMITLOG_CODES
from recover.findings.phrase import (
    Phrase as Phrase,
    count as count,
    few as few,
    listing as listing,
    moment as moment,
    rendered as rendered,
)
from recover.findings.store_codes import CONFIG_CODES, FLEET_CODES, PARTS_CODES, PLAN_CODES, PREDICT_CODES

AREAS: tuple[tuple[Code, ...], ...] = (
    COMMITLOG_CODES,
    CONSUMEQUEUE_CODES,
    INDEX_CODES,
    CHECKPOINT_CODES,
    CONFIG_CODES,
    PARTS_CODES,
    PLAN_CODES,
    PREDICT_CODES,
    FLEET_CODES,
)

CODES: dict[str, Code] = {code.name: code for area in AREAS for code in area}
"""The registry, by name. Each module holds related areas: the log, derived files, everything else."""


class Finding(Struct, frozen=True):
    """One problem, or one range of adjacent problems of one code in one file.

    `file` is relative to the store, `offset` is a byte position in that file; both may be None.
    """

    code: str
    severity: Severity
    file: str | None
    offset: int | None
    message: str
    remedy: str
    facts: dict[str, Any] = field(default_factory=dict)
    bits: int = 0
    repaired_by: RepairedBy = "hand"

    @property
    def by_a_person(self) -> bool:
        """Whether work of a person comes first."""
        return self.repaired_by in ("hand", "search")

    @property
    def by_us(self) -> bool:
        """Whether a command of ours repairs it."""
        return self.repaired_by != "hand"

    def json(self) -> dict[str, Any]:
        return {
            "code": self.code, "severity": self.severity, "file": self.file, "offset": self.offset,
            "message": self.message, "remedy": self.remedy, "facts": self.facts,
        }


def shell_line(*words: object) -> str:
    """The words as one line that every shell splits into the same words. Characters that a terminal or JSON does not
    carry unchanged (controls, bytes that are not UTF-8) go through printf: `"$(printf 'new\\012line')"`."""
    return " ".join(shlex.quote(word) if word.isprintable() else f"\"$(printf '{_octal(word)}')\""
                    for word in map(str, words))


_SECRET = re.compile(r"(?i)[^=]*(?:secret|token|password|credential)[^=]*")
HIDDEN = "***"


def is_secret(key: str) -> bool:
    """Whether the value of a setting is nobody's business: its key names a secret, token, password or credential."""
    return _SECRET.fullmatch(key) is not None


def without_secrets(words: Sequence[str]) -> list[str]:
    """Return a command line's words with the values of such settings, of --set and --conf, as ***."""
    found: list[str] = []
    for word in words:
        option, equals, pair = word.partition("=") if word.startswith("--") else ("", "", word)
        key, has_value, _ = pair.partition("=")
        before = option or (found[-1] if found else "")
        hides = before in ("--set", "--conf") and has_value and is_secret(key)
        found.append(f"{option}{equals}{key}={HIDDEN}" if hides else word)
    return found


def _octal(word: str) -> str:
    raw = b"".join(bytes([ord(char) - 0xDC00]) if "\udc80" <= char <= "\udcff"
                   else char.encode("utf-8", "surrogatepass") for char in word)
    return re.sub(rb"[^0-9A-Za-z/._]", lambda found: b"\\%03o" % ord(found[0]), raw).decode()


def builtins_of(value: Any) -> Any:
    """Return dicts, lists, numbers and texts of structs. Phrases stay what they are, to be told in any language."""
    return to_builtins(value, builtin_types=(Phrase,))


def finding(
    code: str, file: str | None = None, offset: int | None = None, *, severity: Severity | None = None,
    message: str | None = None, remedy: str | None = None, **facts: Any,
) -> Finding:
    """Build a finding of a registered code; `KeyError` for an unregistered one.

    `severity`, `message` and `remedy` default to those of the code.
    """
    kind = CODES[code]
    values = {**facts, "file": file, "offset": offset}
    level = severity or kind.severity
    bits = kind.exit_bits if severity is None else OF_SEVERITY[severity]
    if message is None:
        message = kind.message_of(facts)
    remedy = kind.remedy if remedy is None else remedy
    said, to_do = (text if isinstance(text, Phrase) else Phrase(text, **values) for text in (message, remedy))
    return Finding(code, level, file, offset, said, to_do, dict(facts), bits, by_of(remedy))


def judged(item: Finding, question: Question) -> Finding:
    """The finding as the answer to a question, with the severity and exit bits that its row gives it there."""
    severity, bits = CODES[item.code].judged_by(question)
    return structs.replace(item, severity=severity, bits=bits) if question in CODES[item.code].bits else item


class FindingList:
    """Findings in (file, offset, code) order with exact counts."""

    def __init__(self, findings: Iterable[Finding] = ()) -> None:
        self._findings: list[Finding] = list(findings)

    def extend(self, items: Iterable[Finding]) -> None:
        self._findings.extend(items)

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.sorted())

    def __len__(self) -> int:
        return len(self._findings)

    def sorted(self) -> list[Finding]:
        """All findings, those of the whole store first."""
        return sorted(self._findings, key=lambda f: (f.file or "", -1 if f.offset is None else f.offset, f.code))

    @property
    def bits(self) -> int:
        result = 0
        for item in self._findings:
            result |= item.bits
        return result

    def counts(self) -> dict[str, int]:
        """Number of problems by code; a merged finding counts as many as it stands for."""
        totals: Counter[str] = Counter()
        for item in self._findings:
            totals[item.code] += int(item.facts.get("count", 1))
        return dict(totals)


READS = ("doctor", "inspect", "verify", "predict", "query", "trace", "groups", "pending", "report", "explain",
         "exit-codes")
"""The commands that read a remote store where it is."""
COPY = "DIR"
_NAMED = re.compile(r"mqtool ([a-z-]+) \{store\}")


def filled(text: str, store: str, line: Callable[[str], str], log: str) -> str:
    """Replace `{store}` in the text of a finding or refusal, and complete the commands in it by `line`.

    `--commitlog LOG` stands for `log`, the options of the log's folders where another one is named beside them. A
    command that would change a remote store is named for a copy on a disk.
    """
    text = text.replace("--commitlog LOG ", log)
    copies = "://" in store and not {*_NAMED.findall(text)} <= {*READS}
    text = _NAMED.sub(lambda found: f"mqtool {found[1]} {COPY}" if copies and found[1] not in READS
                      else line(found[1]), text).replace("{store}", COPY if copies else shell_line(store))
    if not copies:
        return text
    return f"A remote store is never changed in place. Copy it to a disk: {copy_command(store)}; then {text}"


def copy_command(place: str) -> str:
    """The command that copies a remote store into the folder DIR.

    >>> copy_command("s3://b/my store?endpoint_override=HOST:9000&scheme=http")
    "aws s3 sync 's3://b/my store' DIR --endpoint-url http://HOST:9000"
    >>> copy_command("hdfs://name:8020/store")
    'hdfs dfs -get hdfs://name:8020/store DIR'
    """
    base, _, query = place.partition("?")
    scheme, _, rest = base.partition("://")
    if not scheme.startswith("s3"):
        return f"hdfs dfs -get {shell_line(base)} {COPY}"
    options = {name: values[-1] for name, values in parse_qs(query).items()}
    line = f"aws s3 sync {shell_line(f's3://{rest}')} {COPY}"
    if "endpoint_override" in options:
        endpoint = f"{options.get('scheme', 'https')}://{options['endpoint_override']}"
        line += f" --endpoint-url {shell_line(endpoint)}"
    return line

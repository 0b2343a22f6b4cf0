"""explain and the findings that it explains; lines of a broker's log."""

from __future__ import annotations

import gzip
import json
import random
import re
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from itertools import chain, cycle, islice, product, zip_longest
from pathlib import Path
from string import Formatter
from typing import Any

import pytest

from fixtures.damage import damage
from fixtures.lab.logs import CASES, LOGS
from fixtures.lab.packed import settings
from formats.record.grammar import RULES
from mqtool.printer import SCREEN_FINDINGS
from recover.broker.broker_logs import read_log
from recover.broker.log_lines import NOTE, RANKS, ROWS, Row
from recover.findings.code import Code
from recover.findings.log_codes import REASONS
from recover.findings.model import CODES, finding
from recover.log.scan import MISSING_FILE, STALE_RECORDS
from recover.reading.end import TORN_RECORD, ZEROED
from tests.cli.runner import mqtool
from tests.cli.test_documents import held
from tests.support.brokers import oracle
from tests.support.command_docs import DOCS
from tests.support.sampling import sampled
from tests.support.stores import real_store

# --- How findings are told: a few of each code on a screen, up to a limit in a document, all of them in a file.


ROOT = DOCS.parent
MISSING = "consumequeue-missing-units"


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal on which no code is broken in two."""
    monkeypatch.setenv("COLUMNS", "160")


@pytest.fixture
def without_queues(tmp_path: Path) -> Path:
    """A store whose queue files are gone, and its checkpoint: one finding for each of many queues, and one more."""
    store = real_store("killed-5.5.0", tmp_path)
    shutil.rmtree(store / "consumequeue")
    (store / "checkpoint").unlink()
    return store


def test_findings_are_cut_in_the_document_and_whole_in_the_file(without_queues: Path, tmp_path: Path) -> None:
    target = tmp_path / "findings.ndjson"
    result = mqtool("verify", without_queues, "--json", "--max-findings", "1", "--findings-out", target)
    assert len(result.document["findings"]) == 1
    assert result.document["truncated"] is True
    assert len(target.read_text().splitlines()) > 1


def test_a_screen_shows_a_few_findings_of_a_code_and_says_how_many_there_are(
    without_queues: Path, tmp_path: Path
) -> None:
    target = tmp_path / "findings.ndjson"
    screen = mqtool("verify", without_queues, "--findings-out", target).stdout
    findings = [json.loads(line) for line in target.read_text().splitlines()]
    missing = [item["file"] for item in findings if item["code"] == MISSING]
    assert len(missing) > SCREEN_FINDINGS + 1
    assert screen.split().count(MISSING) == SCREEN_FINDINGS + 1
    assert f"… {len(missing) - SCREEN_FINDINGS} more" in screen
    assert missing[-1] in screen
    # none is hidden after the many of another code
    assert {item["code"] for item in findings if item["severity"] != "info"} <= set(screen.split())


def test_a_remedy_stands_once_on_a_screen(without_queues: Path) -> None:
    screen = mqtool("verify", without_queues, "--max-findings", "1000").stdout
    remedies = [line.partition("→ ")[2].partition("  (or")[0] for line in screen.splitlines() if "→ " in line]
    assert remedies and len(remedies) == len(set(remedies))


def test_a_screen_shows_as_many_findings_as_asked_for(without_queues: Path, tmp_path: Path) -> None:
    target = tmp_path / "findings.ndjson"
    screen = mqtool("verify", without_queues, "--max-findings", "1000", "--findings-out", target).stdout
    codes = Counter(json.loads(line)["code"] for line in target.read_text().splitlines())
    assert {code: screen.split().count(code) for code in codes} == codes
    assert "more" not in screen.split()
    assert f"… and {codes.total() - 1} more findings" in mqtool("verify", without_queues, "--max-findings", "1").stdout


def test_what_explain_says_of_a_code_has_no_gaps() -> None:
    # facts are filled into message and remedy of a finding alone
    texts = {code.name: code.meaning + code.cause + code.broker + code.action for code in CODES.values()}
    assert [name for name, text in texts.items() if "{" in text] == []


@pytest.mark.parametrize("code", [code for code in CODES.values() if code.one is not None], ids=lambda code: code.name)
def test_a_finding_of_one_says_so_without_a_range(code: Code) -> None:
    known = {name: spec for _, name, spec, _ in Formatter().parse(f"{code.message}{code.one}") if name}
    facts = {name: 7 if spec else name.upper() for name, spec in known.items()}
    one, two = finding(code.name, **facts | {"count": 1}), finding(code.name, **facts | {"count": 2})
    assert "{" not in one.message + two.message
    assert "LAST" not in one.message and one.message != two.message
    assert (one.bits, one.remedy) == (two.bits, two.remedy.replace("--max-loss 2", "--max-loss 1"))


def test_findings_count_in_singular_and_plural() -> None:
    said = [finding("commitlog-damaged-record", start=9, reason="bad-magic", intact_after=n).message for n in (1, 2974)]
    assert said[0].endswith("; 1 intact message lies after it")
    assert said[1].endswith("; 2,974 intact messages lie after it")
    for number in (0, None):
        assert finding("commitlog-missing-file", start=0, stop=9, intact_after=number).message.endswith("are missing")


@pytest.mark.parametrize(("ahead", "said"), [
    (900, "900 ms after"), (7_000, "7 seconds after"), (3 * 86_400_000, "3 days after"),
    (9_162_654_735_993_898_066, "290,545,875 years after"),
])
def test_a_time_ahead_is_said_as_a_person_says_it(ahead: int, said: str) -> None:
    told = finding("checkpoint-later-than-log", field="f", value=ahead, ahead_ms=ahead, newest=0).message
    assert f", {said} the newest record" in told and (ahead > 10**15 or "1970-01-0" in told)


def test_every_reason_that_a_judge_of_the_log_can_give_is_explained() -> None:
    """Out of the sources: the codec, the verdict and what the scan and the evidence add."""
    texts = [path.read_text() for place in ("formats/record", "recover/log", "recover/reading")
             for path in (ROOT / place).glob("*.py")]
    given = {name for text in texts for name in re.findall(r'FormatError\(\s*"([a-z-]+)"', text)}
    given |= set(re.findall(r'"(bad-[a-z-]+|short|blank)"', (ROOT / "formats/record/grammar.py").read_text()))
    given |= {rule.reason for rule in RULES} | {MISSING_FILE, STALE_RECORDS, TORN_RECORD, ZEROED}
    given |= {"bad-blank-size", "unread"}
    others = {"bad-host", "bad-message-id", "bad-compressed-body", "bad-compression-type", "body-too-large"}
    assert given - {"", "bad-", *others} <= REASONS.keys(), "others are of ids and of what clients compressed"
    for name in REASONS:
        assert mqtool("explain", name).code == 0
    assert not REASONS.keys() & CODES.keys()


# --- `mqtool explain --log`, held to what real brokers wrote on damaged stores (fixtures/logs).


KEPT = sorted(LOGS.glob("*.log"))
LINES: dict[str, dict[str, list[str]]] = json.loads((LOGS.parent / "lab" / "log_lines.json").read_text("utf-8"))
RELEASES = {path.stem.rpartition("-")[2] for path in KEPT}
RELEASES_READ = sorted({release for lines in LINES.values() for found in lines.values() for release in found})
#: What brokers warn of that says nothing of a store, or belongs to a line that does.
IDLE = re.compile(
    r"Over index file capacity|is full, trying to create another|Load default|unregisterBroker|shutdown Reput"
    r"|MessageStoreState transition|correct delay offset|Failed to persist|SSLContext|channel option|createChannel"
    r"|No new message\. GetMessageStatus|is NO_NEW_MSG, pullResult"
)
#: What a log has to say first, by case.
FIRST = {
    "sound": "end-of-log", "killed": "killed", "bit-in-body": "cut", "bad-size": "cut", "bad-magic": "cut",
    "garbage-at-the-end": "no-record", "log-file-short": "log-file-length", "log-missing": "log-gone",
    "log-last-missing": "cut", "stray-file": "foreign-file", "queue-file-short": "queue-file-length",
    "old-records": "numbered-twice",
}


def explained(path: Path, code: int = 0) -> dict[str, Any]:
    before = path.read_bytes()
    result = mqtool("explain", "--log", path, "--json")
    assert result.code == code, result.stderr
    held(result.document, "explain")
    assert path.read_bytes() == before
    return result.document


STAND_FOR = ("12", "/data/store/timerlog/00000000000000000000", "RMQ_SYS_TRANS_HALF_TOPIC")
#: As Java and RocksDB word what a broker passes on.
OF_JAVA = (
    "java.io.IOException: No space left on device", "java.io.IOException: Input/output error",
    "java.io.FileNotFoundException: /data/store/lock (Too many open files)", "java.io.IOException: Map failed",
    "java.io.FileNotFoundException: /data/store/abort (Read-only file system)",
    "java.lang.InternalError: a fault occurred in a recent unsafe memory access operation in compiled Java code",
    "org.rocksdb.RocksDBException: Corruption: bad block type in /data/store/kvStore/000012.sst offset 0",
)


def test_every_row_is_a_line_that_a_real_broker_wrote_or_says_where_it_was_read_and_every_code_exists() -> None:
    seen = {item.row.name for path in KEPT for item in read_log(path).seen}
    assert {row.name for row in ROWS if not row.read} == seen
    assert {row.read for row in ROWS} == {"", "jar", "jdk"}
    assert {row.code for row in ROWS} - {None} <= CODES.keys()
    assert {row.rank for row in ROWS} == set(RANKS)
    assert len({row.name for row in ROWS}) == len(ROWS) >= 80


@pytest.mark.parametrize("row", [row for row in ROWS if row.read == "jar"], ids=lambda row: row.name)
def test_a_row_that_was_read_is_a_line_of_the_releases_that_it_names(row: Row, tmp_path: Path) -> None:
    log = tmp_path / "store.log"
    of: set[str] = set()
    for line, releases in ((line, releases) for lines in LINES.values() for line, releases in lines.items()):
        if row.sign in line:
            filled = [_filled(line, some) for some in product(STAND_FOR, repeat=min(4, line.count("{}")))]
            if match := next((text for text in filled if re.search(row.pattern, text.encode())), None):
                of.update(releases)
                log.write_text(f"2026-11-24 07:50:26 ERROR main - {match}\n")
                found = [item.row.name for item in read_log(log).seen]
                assert found == [row.name] or row.part, match
    assert of, "no class of these releases has the line"
    if row.part:
        return
    named = [release for release in RELEASES_READ if _number(row.since or "0") <= _number(release)
             and _number(release) <= _number(row.until or "9")]
    assert (min(of, key=_number), max(of, key=_number)) == (named[0], named[-1])


def _filled(line: str, values: tuple[str, ...]) -> str:
    parts, cells = line.split("{}"), cycle(values or ("",))
    return "".join(chain.from_iterable(zip_longest(parts, islice(cells, len(parts) - 1), fillvalue="")))


def _number(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")))


@pytest.mark.parametrize("line", OF_JAVA)
def test_a_line_of_java_is_explained(line: str, tmp_path: Path) -> None:
    log = tmp_path / "store.log"
    log.write_text(f"2026-11-24 07:50:26 ERROR main - x\n{line}\n")
    assert [item.row.read for item in read_log(log).seen] == ["jdk"]


@pytest.mark.parametrize(("line", "name", "file"), [
    (r"D:\rocketmq\store\commitlog\00000000000000000000" "\t1048575 length not matched message store config value, "
     "please check it manually", "log-file-length", r"D:\rocketmq\store\commitlog\00000000000000000000"),
    (r"load C:\Users\mq\store\config\topics.json failed, and try to load backup file", "config-broken",
     r"C:\Users\mq\store\config\topics.json"),
    (r"Failed to create file D:/store/index/20261128101112345", "file-not-opened", "D:/store/index/20261128101112345"),
])
def test_paths_of_windows_are_read(line: str, name: str, file: str, tmp_path: Path) -> None:
    log = tmp_path / "store.log"
    log.write_text(f"2026-11-24 07:50:26 ERROR main - {line}\n")
    (found,) = explained(log)["seen"]
    assert (found["name"], found["file"]) == (name, file)
    assert explained(log)["log_store"] == re.split(r"[\\/](?:commitlog|config|index)[\\/]", file)[0]


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_every_warning_and_error_of_a_real_broker_is_explained_or_known_to_say_nothing(
    path: Path, tmp_path: Path,
) -> None:
    one = tmp_path / "one.log"
    for line in path.read_text("utf-8").splitlines():
        if re.search(r"(^| )(WARN|ERROR) ", line) and not IDLE.search(line) and "truncate dirty logic" not in line:
            one.write_text(line + "\n", "utf-8")
            assert read_log(one).seen, line


@pytest.mark.parametrize("case", FIRST)
def test_the_failure_is_named_first_with_file_offset_and_what_to_type(case: str) -> None:
    for release in sorted(RELEASES):
        document = explained(LOGS / f"{case}-{release}.log")
        worst = document["seen"][0]
        assert worst["name"] == FIRST[case], release
        named = "/data/store" in (LOGS / f"{case}-{release}.log").read_text("utf-8")
        assert document["log_store"] == ("/data/store" if named else None)
        if worst["rank"] == NOTE:
            assert "no sign of damage" in document["summary"]
            assert document["next"][0]["command"] == "mqtool verify /data/store"
        else:
            assert [step["command"] for step in document["next"]][: len(worst["then"])] == worst["then"]
            assert document["next"][-1]["command"] == f"mqtool explain {worst['code']}"
        if worst["name"] in ("cut", "log-file-length", "queue-file-length"):
            assert worst["file"].startswith("/data/store/")
            assert worst["last_time"] and worst["file"] in document["summary"]


@pytest.mark.parametrize(("case", "release"), sampled(
    ["bit-in-body", "bad-size", "bad-magic", "log-last-missing"], sorted(RELEASES), quick=4,
))
def test_the_cut_that_a_log_tells_of_is_where_predict_has_it(
    case: str, release: str, store: Callable[[str], Path],
) -> None:
    (made,) = [one for one in CASES if one.name == case]
    root = store(made.store)
    for name in made.damages:
        damage(name, root, 1)
    document = mqtool("predict", root, "--broker", release, "--json").document
    (cut,) = [item for item in explained(LOGS / f"{case}-{release}.log")["seen"] if item["name"] == "cut"]
    assert cut["offset"] == document["max_phy"]
    assert Path(cut["file"]).name in {path.name for path in (root / "commitlog").iterdir()}


def test_what_it_says_to_type_can_be_typed(
    store: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = store("clean-plain-4.9.7")
    monkeypatch.chdir(tmp_path)
    lines = {line for path in KEPT for item in read_log(path).seen for line in item.row.then}
    facts = {"store": "/data/store", "file": "/data/store/commitlog/00000000000000000000", "offset": 0}
    assert len(lines) > 6
    for number, line in enumerate(sorted(line.format_map(facts) for line in lines)):
        words = shlex.split(line.replace("/data/store", str(root)).replace("cut.ndjson", f"{number}.ndjson"))
        result = mqtool(*words[1:], "--json")
        assert result.code == 0, (line, result.stderr)


@pytest.mark.broker
@pytest.mark.deep
@pytest.mark.parametrize("release", ["4.9.7", "5.5.0"])
def test_what_a_start_has_cut_comes_out_with_the_command_that_is_named(
    release: str, store: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = store("clean-5.3.3")
    damage("bit-in-size", root, 1)
    line = explained(LOGS / f"bad-size-{release}.log")["next"][0]["command"]
    words = shlex.split(line.replace("/data/store", str(root)))[1:]
    monkeypatch.chdir(tmp_path)
    assert mqtool(*(word.replace("cut.ndjson", "before.ndjson") for word in words)).code == 0
    assert oracle(release).start(root, settings("clean-5.3.3")).starts
    assert mqtool(*words).code == 0
    lines = (tmp_path / "cut.ndjson").read_bytes().splitlines()
    assert len(lines) > 100
    assert lines == (tmp_path / "before.ndjson").read_bytes().splitlines()


@pytest.mark.parametrize("damaged_last", [False, True])
def test_of_two_brokers_in_one_log_the_store_is_the_one_that_the_line_is_about(
    damaged_last: bool, tmp_path: Path,
) -> None:
    """A sound store and one with a bad checksum, whose line names no store itself."""
    sound, damaged = ((LOGS / f"{case}-5.3.3.log").read_text("utf-8").replace("/data/store", root)
                      for case, root in (("sound", "/data/sound"), ("bit-in-body", "/data/damaged")))
    log = tmp_path / "store.log"
    log.write_text("".join([sound, damaged] if damaged_last else [damaged, sound]), "utf-8")
    document = explained(log)
    assert document["log_store"] == "/data/damaged"
    assert all("/data/damaged" in step["command"] or step["command"].startswith("mqtool explain")
               for step in document["next"])
    stores = {(item["name"], item["store"]) for item in document["seen"]}
    assert {("cut", "/data/damaged"), ("bad-body-crc", "/data/damaged"), ("end-of-log", "/data/sound")} <= stores
    assert not {("cut", "/data/sound"), ("bad-body-crc", "/data/sound")} & stores


def test_a_packed_log_reads_as_the_plain_one_and_a_cut_one_is_refused(tmp_path: Path) -> None:
    plain = LOGS / "bit-in-body-4.9.7.log"
    packed = tmp_path / "store.log.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes() * 50))
    document = explained(packed)
    assert document["seen"][0]["name"] == "cut"
    assert document["seen"][0]["lines"] == 50
    packed.write_bytes(packed.read_bytes()[:-20])
    assert explained(packed, code=8)["error"]["remedy"]
    content = bytearray(gzip.compress(plain.read_bytes()))
    content[40:44] = b"\xff\xff\xff\xff"
    packed.write_bytes(content)
    assert explained(packed, code=8)["error"]["remedy"]


@pytest.mark.parametrize("line", [
    b"2026-11-24 07:50:26 INFO FlushRealTimeService - nothing of note", b"INFO  [main] last shutdown normally",
    b"2026-11-24 07:50:26 [container] WARN main - x",
])
def test_a_log_of_a_broker_without_a_sign_of_damage_is_told_from_a_file_that_is_none(
    line: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "store.log"
    path.write_bytes(b"# rotated\n" + line + b"\n")
    assert "no sign of damage" in explained(path)["summary"]
    path.write_bytes(b"# rotated\n" + line.replace(b"INFO", b"").replace(b"WARN", b"") + b"\n")
    assert "none is recognized" in explained(path)["summary"]


@pytest.mark.parametrize("content", [
    b"", b"\n" * 100_000, b"\0" * (4 << 20), b"x" * (8 << 20), b"/" * (1 << 20) + b" length not matched",
    (b"/commitlog" * 400 + b"\t1 length not matched message store config value") * 400,
    b"load consume queue " * 200_000 + b" Failed\n", b"maxPhyOffsetOfConsumeQueue(" + b"9" * 4000 + b") >=\n" * 100,
    b"delete file[REF:0] /" * 100_000, random.Random(7).randbytes(2 << 20),
    b"recover physics file end, /" + b"0" * 4000 + b"\n", b"load \xff\xfe.json Failed\n" * 1000,
], ids=range(12))
def test_a_hostile_log_ends_with_an_answer(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "store.log"
    path.write_bytes(content)
    document = explained(path)
    assert document["bytes"] <= len(content)
    assert document["recognized"] is bool(document["seen"])
    assert document["seen"] or ("none is recognized" in document["summary"] and not document["next"])
    assert mqtool("explain", "--log", path).code == 0


def test_a_log_and_a_code_or_no_file_are_refused(tmp_path: Path) -> None:
    assert mqtool("explain", "bad-body-crc", "--log", KEPT[0]).code == 16
    assert mqtool("explain", "--log", tmp_path).code == 8
    assert mqtool("explain", "--log", tmp_path / "none.log").code == 8


def test_a_log_that_is_given_as_a_code_leads_to_its_option(tmp_path: Path) -> None:
    log = tmp_path / "store.log"
    log.write_text("java.lang.RuntimeException: Lock failed,MQ already started\n")
    done = mqtool("explain", log)
    assert done.code == 16 and f"mqtool explain --log {log}" in done.stderr


def test_explain_imports_what_it_needs_and_no_store() -> None:
    """A start costs what it imports: 92 modules of ours before, of which it needed a quarter."""
    script = ("import sys; from mqtool.cli import main; main(['explain', 'abort-present', '--quiet']); "
              "print(sum(name.split('.')[0] in ('mqtool', 'recover', 'formats') for name in sys.modules))")
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(ran.stdout.split()[-1]) <= 40

"""The command line: help, usage errors, pipes, signals, and lines of progress."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from rich.console import Console

from fixtures.damage import damage
from formats.basics import FormatError
from mqtool import exits
from mqtool.commands import COMMANDS, HELP, Entry
from mqtool.declared import OutputOptions
from mqtool.next_steps import Given
from mqtool.options import command
from mqtool.printer import Printer, Progress, table
from mqtool.text import clean
from recover.findings.code import NotAStore, Refusal, UsageRefusal
from tests.cli.runner import mqtool
from tests.support.sampling import few, sampled
from tests.support.stores import real_store, unpacked

# --- The frame around every command: help, exit codes, errors, one document.


ROOT = Path(__file__).parents[2]


def process(*arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "mqtool", *arguments], capture_output=True, text=True, cwd=ROOT,
                          timeout=60, check=False, **more)


@contextmanager
def command_that(monkeypatch: pytest.MonkeyPatch, body: Any) -> Iterator[None]:
    """A command `probe` of the registry whose body the test supplies."""

    @command(examples=[("", "probe")])
    def run(out: Printer) -> int:
        """Probe."""
        result = body(out)
        return result if isinstance(result, int) else 0

    monkeypatch.setitem(COMMANDS, "probe", Entry("probe", "run", "Probe.", HELP))
    monkeypatch.setitem(sys.modules, "mqtool.commands.probe", SimpleNamespace(run=run))
    yield


def raising(error: BaseException) -> Any:
    def body(out: Printer) -> int:
        out.answer(begun=True)
        raise error

    return body


def test_help_lists_every_command_without_importing_the_heavy_parts() -> None:
    script = (
        "import sys\nfrom mqtool.cli import main\ncode = main(['--help'])\n"
        "heavy = {'numpy', 'pyarrow', 'pyspark', 'pandas', 'recover.log.file_scan', 'recover.store.store'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)\nsys.exit(code)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0
    assert done.stderr.strip() == "[]"
    for name in COMMANDS:
        assert f" {name} " in done.stdout


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_has_help_with_examples_and_exit_codes(name: str) -> None:
    result = mqtool(name, "--help")
    assert result.code == 0
    assert f"mqtool {name}" in result.stdout.split("Examples")[1]
    assert "a bug in mqtool" in result.stdout.split("Exit codes")[1]


@pytest.mark.parametrize("line", [["nonsense"], ["explain", "--nonsense"], ["exit-codes", "too", "many"],
                                  ["exit-codes", "--max-findings", "x"], ["exit-codes", "--color", "pink"]])
def test_usage_errors_are_16(line: list[str]) -> None:
    result = mqtool(*line)
    assert result.code == 16
    assert result.stdout == ""
    assert "--help" in result.stderr


def test_a_mistyped_command_is_met_with_the_nearest() -> None:
    result = mqtool("verfy", "/data/store")
    assert result.code == 16
    assert "Did you mean 'verify'" in result.stderr


def test_an_option_before_the_command_is_told_where_it_goes() -> None:
    result = mqtool("--json", "verify", "STORE")
    assert result.code == 16
    assert "Options follow the command" in result.stderr


def test_usage_error_with_json_is_a_document_too() -> None:
    result = mqtool("exit-codes", "--json", "--nonsense")
    assert result.code == 16
    assert result.document["schema"] == "mqtool/exit-codes/1"
    assert result.document["exit_code"] == 16


@pytest.mark.parametrize(("error", "code"), [
    (Refusal("no"), 8), (UsageRefusal("no"), 16), (NotAStore("no"), 16), (PermissionError(13, "denied", "f"), 8),
    (IsADirectoryError(21, "is a directory", "f"), 8), (OSError(5, "Input/output error", "f"), 8), (MemoryError(), 8),
    (KeyboardInterrupt(), 32), (exits.Stopped(signal.SIGTERM), 32), (typer.BadParameter("bad"), 16),
    (ValueError("surprise"), 128), (SystemExit(1), 128), (AssertionError(), 128),
])
def test_every_error_becomes_its_code_and_a_document(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    with command_that(monkeypatch, raising(error)):
        plain = mqtool("probe")
        result = mqtool("probe", "--json")
    assert plain.code == result.code == code
    assert plain.stdout == ""
    assert plain.stderr.startswith("mqtool probe: ")
    assert result.document["begun"] is True
    assert result.document["exit_code"] == code
    assert {"schema", "store", "findings", "truncated", "error"} <= set(result.document)


def test_bytes_that_no_longer_decode_beside_a_file_that_just_changed_are_no_bug(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stores = [tmp_path / str(number) for number in range(20)]
    for store in stores:
        store.mkdir()
        (store / "checkpoint").write_bytes(b"checkpoint")
    time.sleep(0.05)
    left = iter(stores)

    def changing(out: Printer) -> int:
        store = next(left)
        # stamped by a clock that is milliseconds after, as long as this run takes
        os.truncate(store / "checkpoint", 1)
        out.store = str(store)
        raise FormatError("short", 0, "the unit is cut short")

    with command_that(monkeypatch, changing):
        results = [mqtool("probe") for _ in stores]
    assert {result.code for result in results} == {8}
    assert "checkpoint changed while the store was read" in results[0].stderr


@pytest.mark.parametrize("error", [ValueError("surprise"), IndexError("surprise"), KeyError("surprise")])
def test_a_bug_stays_a_bug_beside_a_file_that_just_changed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception
) -> None:
    def changing(out: Printer) -> int:
        out.store = str(tmp_path)
        time.sleep(0.05)
        (tmp_path / "checkpoint").write_bytes(b"checkpoint")
        raise error

    with command_that(monkeypatch, changing):
        result = mqtool("probe")
    assert result.code == 128
    assert "Traceback" in result.stderr


def test_names_from_a_store_never_reach_the_terminal_raw(monkeypatch: pytest.MonkeyPatch) -> None:
    nasty = "a\x1b[2Jb\nc\x9bd\u202ee"
    with command_that(monkeypatch, raising(Refusal(nasty, nasty))):
        for result in (mqtool("probe", "--color", "never"), mqtool("probe", "--json")):
            printed = result.stdout + result.stderr.replace("\n", " ")
            assert not {"\x1b", "\x9b", "\u202e"} & set(printed)
    assert "a\\x1b[2Jb\\x0ac" in result.stderr


def test_exit_code_table_holds_each_bit_once() -> None:
    document = mqtool("exit-codes", "--json").document
    assert [row["bit"] for row in document["codes"]] == [0, 1, 2, 4, 8, 16, 32, 64, 128]
    assert document["store"] is None
    assert document["findings"] == []
    assert document["truncated"] is False


def test_quiet_prints_only_the_summary_line() -> None:
    assert len(mqtool("exit-codes", "--quiet").stdout.splitlines()) == 1


def test_color_follows_the_option() -> None:
    assert "\x1b[" in mqtool("exit-codes", "--color", "always").stdout
    assert "\x1b[" not in mqtool("exit-codes", "--color", "never").stdout
    assert "\x1b[" not in mqtool("exit-codes").stdout


def test_no_color_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[3" not in mqtool("exit-codes").stdout


@pytest.mark.parametrize(("words", "number", "offered"), [
    ("mqtool re", 1, "recover"), ("mqtool explain commitlog-damaged-r", 2, "commitlog-damaged-record"),
    ("mqtool recover --pol", 2, "--policy"), ("mqtool verify --only ch", 3, "checkpoint"),
])
def test_shell_completion_offers_commands_options_and_codes(words: str, number: int, offered: str) -> None:
    done = process(env={**os.environ, "_MQTOOL_COMPLETE": "complete_bash", "COMP_WORDS": words,
                        "COMP_CWORD": str(number)})
    assert done.returncode == 0
    assert offered in done.stdout.split()
    assert done.stderr == ""


def test_every_code_can_be_explained() -> None:
    listed = mqtool("explain", "--json").document["codes"]
    for row in listed:
        assert all(row[key] for key in ("meaning", "cause", "broker", "action")), row["code"]
    if listed:
        one = mqtool("explain", listed[0]["code"])
        assert one.code == 0
        assert listed[0]["code"] in one.stdout


def without_reader(stream: str, *line: object) -> subprocess.CompletedProcess[bytes]:
    """Run `mqtool LINE` with nobody at the other end of `stream`."""
    read, write = os.pipe()
    os.close(read)
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, stream: write}
    done = subprocess.run([sys.executable, "-m", "mqtool", *map(str, line)], cwd=ROOT, timeout=60, check=False,
                          **streams)
    os.close(write)
    return done


@few("line", ["exit-codes", "exit-codes --json", "--help", "verify --help"], quick=(1, 2))
def test_closed_stdout_ends_quietly(line: str) -> None:
    done = without_reader("stdout", *line.split())
    assert done.returncode == 0
    assert done.stderr == b""


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_the_answer_does_not_need_a_reader_of_stderr(form: tuple[str, ...], tmp_path: Path) -> None:
    root = real_store("clean-5.3.3", tmp_path)
    damage("bit-in-body", root, 1)
    done = without_reader("stderr", "verify", root, "--progress", *form)
    assert done.returncode & exits.MESSAGES
    assert b"bad-body-crc" in done.stdout


@pytest.mark.parametrize(("line", "closed"), sampled(
    ["verify STORE", "verify STORE --json", "export STORE -o -", "--help"], [">&-", "2>&-", ">&- 2>&-"], quick=4,
))
def test_streams_that_were_closed_before_the_start_take_nothing(line: str, closed: str) -> None:
    command = line.replace("STORE", str(unpacked("clean-5.3.3")))
    done = subprocess.run(["sh", "-c", f"{sys.executable} -m mqtool {command} {closed}"], cwd=ROOT, timeout=60,
                          capture_output=True, check=False)
    assert done.returncode == 0
    assert (b"Traceback" not in done.stderr) and (not done.stdout or "2>&-" in closed)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_full_disk_under_stdout_is_8() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-m", "mqtool", "exit-codes"], stdout=full, stderr=subprocess.PIPE,
                              cwd=ROOT, timeout=60, check=False)
    assert done.returncode == 8


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_end_with_32(number: signal.Signals) -> None:
    script = (
        "import signal, sys, time\nfrom mqtool import exits\nfrom mqtool.cli import main\nimport mqtool.cli as cli\n"
        # a suite in the background of a shell, or under nohup, inherits ignored signals
        "signal.signal(signal.SIGINT, signal.default_int_handler)\nsignal.signal(signal.SIGHUP, signal.SIG_DFL)\n"
        "def wait(printer):\n    print('ready', flush=True)\n    time.sleep(30)\n"
        "cli._invoke = wait\nsys.exit(main(['exit-codes']))\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          cwd=ROOT) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        time.sleep(0.05)
        running.send_signal(number)
        _, stderr = running.communicate(timeout=30)
    assert running.returncode == 32
    assert number.name in stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_while_the_command_line_is_loaded_end_with_32(number: signal.Signals) -> None:
    lines = (
        "import os, signal, sys\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "signal.signal(signal.SIGHUP, signal.SIG_DFL)\nclass Finder:\n    def find_spec(self, name, *more):\n"
        f"        if name == 'mqtool.cli':\n            os.kill(os.getpid(), {number})\n"
        "sys.meta_path.insert(0, Finder())\nfrom mqtool.__main__ import run\nrun()\n"
    )
    done = subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True, timeout=60)
    assert done.returncode == exits.INTERRUPTED
    assert done.stderr == f"mqtool: stopped by {number.name} (exit 32: interrupted)\n"


def test_a_signal_speaks_of_resume_only_where_something_was_changed() -> None:
    for writing, word in ((False, "not changed"), (True, "mqtool resume s")):
        printer = Printer()
        printer.begin("verify", OutputOptions(), "s", (), Given("s"))
        printer.writing = writing
        stderr = io.StringIO()
        with contextlib.redirect_stderr(stderr):
            assert printer.fail(exits.failure_of(exits.Stopped(signal.SIGINT))) == exits.INTERRUPTED
        assert word in stderr.getvalue()
        assert ("resume" in stderr.getvalue()) is writing


@pytest.mark.parametrize(("rows", "of", "left"), [(20, None, 0), (21, None, 1), (500, None, 480), (20, 500, 480)])
def test_a_table_that_is_cut_says_how_many_rows_it_leaves_out_and_where_they_are(
    rows: int, of: int | None, left: int
) -> None:
    printer = Printer()
    printer.begin("verify", OutputOptions(), "s", (), Given("s"))
    screen = io.StringIO()
    with contextlib.redirect_stdout(screen):
        printer.show(table("t", ["name"], ([f"row {n}"] for n in range(rows)), 20, of, "the tables in d hold all"))
    assert screen.getvalue().count("row ") == 20
    assert (f"… {left} more: the tables in d hold all" in screen.getvalue()) is bool(left)


@pytest.mark.parametrize("width", [20, 80])
def test_a_table_wider_than_the_screen_shows_one_row_below_the_other_with_no_name_broken(
    width: int, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    columns = ["code", "where", *(f">number {n}" for n in range(9)), "*what"]
    rows = [["damaged-record", "commitlog/0000001", *range(9), f"what is wrong in row {n}"] for n in range(2)]
    printer, screen = Printer(), io.StringIO()
    with contextlib.redirect_stdout(screen):
        printer.show(table("t", columns, rows))
    lines = screen.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    text = " ".join(screen.getvalue().split())
    assert text.count("damaged-record") == text.count("commitlog/0000001") == text.count("number 8 8") == 2
    assert "what is wrong in row 0 code damaged-record" in text


def test_one_long_name_leaves_a_table_a_table_and_stands_whole_below_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    names = ["G" * 62 + "a" + "G" * 61, "G" * 62 + "b" + "G" * 61, "CG_orders"]
    screen = io.StringIO()
    with contextlib.redirect_stdout(screen):
        Printer().show(table("t", ["group", ">committed", ">max after"], [[name, 7, 9] for name in names]))
    text = screen.getvalue()
    lines = [line.split() for line in text.splitlines()]
    rows = [line for line in lines if line[-2:] == ["7", "9"]]
    assert len({row[0] for row in rows}) == 3 and rows[2][0] == "CG_orders"
    assert all(row[0] in text.split("CG_orders")[1] and len(row[0]) <= 40 for row in rows[:2])
    assert all(name in "".join(text.split()) for name in names)


def test_output_that_is_piped_has_no_blanks_at_the_end_of_lines() -> None:
    done = process("exit-codes")
    assert done.returncode == 0
    assert [line for line in done.stdout.splitlines() if line != line.rstrip()] == []


@pytest.mark.parametrize("line", [["-h"], ["verify", "-h"]])
def test_h_is_help(line: list[str]) -> None:
    result = mqtool(*line)
    assert result.code == 0 and "Usage" in result.stdout


@pytest.mark.parametrize("line", [["exit-codes"], ["--help"]])
def test_a_terminal_without_a_size_gets_the_answer_too(line: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "0")
    assert "mqtool" in mqtool(*line).stdout


@pytest.mark.parametrize("width", [40, 80])
def test_only_columns_of_sentences_are_wrapped(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    printer, screen = Printer(), io.StringIO()
    with contextlib.redirect_stdout(screen):
        printer.show(table("t", ["code", "*what"], [["damaged-record", "a long sentence " * 9]]))
    lines = screen.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert [line.split()[0] for line in lines[3:] if line[0] != " "] == ["damaged-record"]


# --- Progress: calm estimates, nothing where nobody looks; sizes and times in words.


def test_nothing_is_drawn_where_stderr_is_no_terminal() -> None:
    stream = io.StringIO()
    with Progress("scanning", None, lambda: Console(file=stream), 100) as progress:
        progress(100, 3)
    assert stream.getvalue() == ""


def test_steps_name_what_comes_next_without_raw_controls() -> None:
    stream = io.StringIO()
    printer = Printer()
    printer.options = OutputOptions(progress=True)
    printer.stderr_console = lambda: Console(file=stream, force_terminal=True, width=100)  # type: ignore[method-assign]
    with printer.steps("applying") as steps:
        steps(0, 2, "install evil\x1b]0;x\x07")
    assert "step 1 of 2" in stream.getvalue()
    assert "\x1b]0;" not in stream.getvalue()


def test_a_signal_between_steps_waits_for_the_end_of_the_step() -> None:
    import os
    import signal

    reached = False
    with pytest.raises(exits.Stopped), exits.signals(), exits.between_steps() as interrupted:
        assert not interrupted()
        os.kill(os.getpid(), signal.SIGTERM)
        assert interrupted()
        reached = True
    assert reached


@pytest.mark.parametrize(("raw", "harmless"), [
    ("plain-Topic_1%", "plain-Topic_1%"), ("订单", "订单"), ("a\nb", "a\\x0ab"), ("\x1b[31m", "\\x1b[31m"),
    ("\u202eabc", "\\u202eabc"), (b"\xff\xfe", "\\xff\\xfe"), ("\x85", "\\x85"), ("\ud800", "\\ud800"),
    ("\u2028", "\\u2028"),
])
def test_names_are_made_harmless(raw: str | bytes, harmless: str) -> None:
    assert clean(raw) == harmless


@pytest.mark.parametrize(
    "name", [b"a b", b"it's", b"new\nline", b"\xff\xfe", b"\x1b[31m", b"50%\t\\", "\u202e\u8ba2".encode()])
def test_a_command_to_type_next_names_every_store_in_letters_that_a_shell_reads(name: bytes, tmp_path: Path) -> None:
    """The screen and the document agree, and sh hands the command the very bytes of the name."""
    root = real_store("clean-4.5.1", tmp_path).rename(tmp_path / os.fsdecode(name))
    (root / "abort").touch()
    told = mqtool("inspect", root)
    command = mqtool("inspect", root, "--json").document["next"][0]["command"]
    assert f"next: {command}" in told.stdout
    assert command.isprintable()
    arguments = f'printf "%s" {command.removeprefix("mqtool verify ")}'
    assert subprocess.run(["sh", "-c", arguments], check=True, capture_output=True).stdout == os.fsencode(root)


def test_a_bound_below_what_a_scan_needs_is_a_usage_error() -> None:
    store = unpacked("clean-4.5.1")
    for option, values in (("--rate-limit", ("0", "50")), ("--memory", ("0", "1K", "1023K"))):
        for value in values:
            done = mqtool("verify", store, option, value)
            assert done.code == exits.USAGE and "at least" in done.stderr, value
    assert not mqtool("verify", store, "--memory", "1M").code & exits.USAGE

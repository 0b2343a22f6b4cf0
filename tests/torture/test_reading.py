"""Reading never writes: every reading command under a tracer of system calls, on trees that cannot be written."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.scenarios.drill import Drill, log_options
from tests.support.counts import Count
from tests.support.stores import real_store
from tests.support.trees import assert_unchanged

_CALLS = (
    "open,openat,creat,unlink,unlinkat,rename,renameat,renameat2,mkdir,mkdirat,rmdir,link,linkat,symlink,symlinkat,"
    "truncate,ftruncate,fallocate,write,pwrite64,writev,pwritev,chmod,fchmod,fchmodat,chown,fchown,lchown,fchownat,"
    "utimensat,setxattr,lsetxattr,fsetxattr,removexattr,flock,fcntl,mmap,fsync,fdatasync,mknod,mknodat,copy_file_range"
)
_PROGRAM = """
import sys
from mqtool.cli import main
codes = [main(line.split("\\t")) for line in sys.argv[1:]]
sys.exit(any(code & 128 for code in codes))
"""
_OPENS = re.compile(r"O_WRONLY|O_RDWR|O_CREAT|O_TRUNC|O_APPEND|O_TMPFILE")


def reading(root: Path) -> list[list[str]]:
    """Every command that only looks, and every changing one up to its plan."""
    store = [str(root), *map(str, log_options(root))]
    log = next(path for path in sorted(root.rglob("*")) if path.parent.name.startswith("commitlog") and path.is_file())
    topic = next((path.name for path in sorted((root / "consumequeue").iterdir())), "none")
    return [
        ["verify", *store], ["verify", *store, "--json"], ["inspect", *store], ["inspect", str(log)],
        ["inspect", str(log), "--hex", "--limit", "2"], ["inspect", str(root / "checkpoint")],
        ["predict", *store, "--broker", "4.9.7"], ["predict", *store, "--broker", "5.3.3"],
        ["query", *store, "--topic", topic, "--queue", "0", "--offset", "0", "--body"],
        ["query", *store, "--topic", topic, "--key", "none"], ["query", *store, "--phy-offset", "0"],
        ["groups", *store], ["report", *store, "--json", "--digests"], ["journal", str(root)],
        ["recover", *store, "--dry-run"], ["rebuild", *store, "--dry-run"],
        ["rebuild-index", *store, "--dry-run"], ["rebuild-consumequeue", *store, "--dry-run"],
        ["truncate", *store, "--to", "0", "--max-loss", "all", "--dry-run"],
    ]


def changing_calls(trace: str, root: Path) -> list[str]:
    """The lines of a trace that change, lock, or open for writing something below the root."""
    found = []
    for line in trace.splitlines():
        if str(root) not in line or re.search(r"= -1 E", line):
            continue
        call = re.sub(r"^\d+ +", "", line).split("(")[0]
        harmless = {
            "open": not _OPENS.search(line), "openat": not _OPENS.search(line),
            "fcntl": "SETLK" not in line, "mmap": "MAP_SHARED" not in line or "PROT_WRITE" not in line,
            # what is printed names the store, too
            "write": not re.search(r"write\(\d+<" + re.escape(str(root)), line),
            # a link to the store, in a scratch folder outside of it
            "symlink": re.search(r', "' + re.escape(str(root)), line) is None,
        }
        if not harmless.get(call, call.startswith(("+++", "---", "<..."))):
            found.append(line)
    return found


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=pytest.mark.deep if name == "broken" else pytest.mark.long)
    for name in ("clean-plain-4.9.7", "killed-5.5.0", "killed-multipath-5.3.3", "broken")
])
def test_no_reading_command_changes_locks_or_opens_for_writing(name: str, tmp_path: Path, count: Count) -> None:
    if shutil.which("strace") is None:
        pytest.skip("NOT RUN: needs strace")
    if name == "broken":
        drill = Drill.start("killed-lmq-4.9.7", tmp_path)
        for recipe in ("bit-in-body", "queue-behind", "index-unit-hash", "checkpoint-zero"):
            drill.strike(recipe)
        root = drill.root
    else:
        root = real_store(name, tmp_path)
    commands = reading(root)
    trace = tmp_path / "trace"
    with assert_unchanged(root):
        done = subprocess.run(
            ["strace", "-f", "-qq", "-y", "-s", "300", "-e", f"trace={_CALLS}", "-o", str(trace), sys.executable, "-c",
             _PROGRAM, *("\t".join(line) for line in commands)],
            capture_output=True, text=True, check=False, timeout=300,
        )
    if "ptrace" in done.stderr and "not permitted" in done.stderr:
        pytest.skip("NOT RUN: may not trace")
    assert done.returncode == 0, done.stderr[-2000:]
    text = trace.read_text(errors="replace")
    assert f'"{root}' in text, "the tracer saw the store opened"
    assert changing_calls(text, root) == []
    count("reading commands traced", len(commands))


def test_the_tracer_sees_what_it_looks_for() -> None:
    root = Path("/s")
    for line in (
        '12 openat(AT_FDCWD, "/s/lock", O_RDWR|O_CLOEXEC) = 3</s/lock>', '12 unlink("/s/abort") = 0',
        '12 fcntl(3</s/lock>, F_OFD_SETLK, {l_type=F_WRLCK}) = 0', "12 ftruncate(3</s/a>, 0) = 0",
        '12 mmap(NULL, 1, PROT_READ|PROT_WRITE, MAP_SHARED, 3</s/a>, 0) = 0x1', '12 write(3</s/a>, "x", 1) = 1',
    ):
        assert changing_calls(line, root) == [line]
    for line in (
        '12 openat(AT_FDCWD, "/s/lock", O_RDONLY|O_CLOEXEC) = 3</s/lock>', "12 fcntl(3</s/lock>, F_GETLK, {}) = 0",
        '12 write(1</dev/pts/0>, "store /s", 8) = 8', "12 mmap(NULL, 1, PROT_READ, MAP_PRIVATE, 3</s/a>, 0) = 0x1",
    ):
        assert changing_calls(line, root) == []

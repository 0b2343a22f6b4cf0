"""What tests stand on: damage recipes, synthetic stores, the plain reader, digests of trees."""

from __future__ import annotations

import ast
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from fixtures.damage import RECIPES, Damage, NotApplicable, damage, walk
from fixtures.lab.packed import manifest
from fixtures.shapes import SHAPES
from fixtures.synth import synth_store
from formats.record import BLANK_SIZE, MIN_RECORD_SIZE
from tests.cli.runner import mqtool
from tests.support import plain_reader as plain
from tests.support.counts import NOTE, PREFIX, lines
from tests.support.sampling import chosen
from tests.support.stores import STORES, unpacked
from tests.support.trees import Node, assert_same_tree, assert_unchanged, contents, tree_digest
from tests.torture import anatomy, excuses

# --- The damage recipes do what they say, to what they say, and the same again for the same seed.


# Records whose bytes differ and that still pass every check there is.
UNDETECTABLE = {"bit-in-topic-legal", "bit-in-properties"}


def _try(name: str, root: Path) -> Damage | None:
    try:
        return damage(name, root)
    except NotApplicable:
        return None


def _check(name: str, root: Path) -> Damage | None:
    """Run the recipe; if it applies to the store it must name what it touched, else touch nothing."""
    before = tree_digest(root)
    done = _try(name, root)
    after = tree_digest(root)
    if done is None:
        assert_same_tree(before, after)
        return None
    named = {change.file for change in done.changes}
    expected = named | {parent.as_posix() for file in named for parent in Path(file).parents}
    touched = {path for path in before.keys() | after.keys() if _content(before, path) != _content(after, path)}
    assert touched, f"{name} changed nothing"
    unnamed = {path for path in touched - expected if not any(path.startswith(file + "/") for file in named)}
    # A renamed file is named by where it was.
    assert not unnamed or any("renamed" in change.what for change in done.changes), unnamed
    return done


def _content(digest: dict[str, Node], path: str) -> tuple[str, int] | None:
    node = digest.get(path)
    return None if node is None else (node.sha256, node.size)


@pytest.mark.parametrize("name", chosen([(name,) for name in RECIPES], quick=24))
def test_recipe_does_what_it_says_and_the_same_again(name: str, store: Callable[[str], Path]) -> None:
    if name == "queue-first-file-missing":
        pytest.skip("needs a queue of two files; see test_synth")
    for source in STORES:
        one = store(source)
        if done := _check(name, one):
            other = store(source)
            assert _try(name, other) == done
            assert contents(one) == contents(other)
            _reports_the_records_it_hit(name, done)
            return
    pytest.fail("no store has what this recipe damages")


def _reports_the_records_it_hit(name: str, done: Damage) -> None:
    """Held against what the recipe is known to do; damage beside the log leaves the records alone."""
    area = RECIPES[name].area
    if area in ("queue", "index", "checkpoint", "abort", "config"):
        assert name == "consumer-offset-below-min" or (not done.changed and not done.lost)
    if area != "log":
        return
    phy_offset = done.facts["phy_offset"]
    if name.startswith(("blank-", "tail-", "stale-", "ghosts-")):
        assert not done.changed and not done.lost
    elif name in UNDETECTABLE:
        assert done.changed == (phy_offset,) and not done.lost
    elif "page" in name:
        # A page may begin or end in properties, whose bytes nothing checks.
        assert done.lost and set(done.lost) <= set(done.changed) and len(done.changed) <= len(done.lost) + 4
        assert done.lost[-1] < max(phy_offset, done.facts.get("other", 0)) + done.facts["size"]
    else:
        assert done.changed == done.lost == (phy_offset,)


# --- Synthetic stores hold what their writer says, laid out so that the strict codec finds nothing to object to.


def _log_folders(root: Path) -> list[Path]:
    if (root / "commitlog").is_dir():
        return [root / "commitlog"]
    return [root.with_name(root.name + end) for end in ("-log-a", "-log-b")]


def _records(root: Path) -> dict[int, walk.Located]:
    files = [file for folder in _log_folders(root) for file in walk.mapped_files(folder)]
    return {hit.record.phy_offset: hit for file in files for hit in walk.records_of(file)}


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    digests = []
    for name in ("one", "other"):
        synth_store(tmp_path / name, seed=5, messages=200)
        digests.append(contents(tmp_path / name))
    assert digests[0] == digests[1]
    synth_store(tmp_path / "third", seed=6, messages=200)
    assert contents(tmp_path / "third") != digests[0]


def test_every_blank_leaves_every_number_of_bytes(tmp_path: Path) -> None:
    SHAPES["every-blank"](tmp_path / "s")
    left = {file.path.stat().st_size - position for file, position in walk.blanks(tmp_path / "s")}
    assert left == set(range(BLANK_SIZE, MIN_RECORD_SIZE + BLANK_SIZE))


def test_first_file_of_a_queue_can_go_missing(tmp_path: Path) -> None:
    synth_store(tmp_path / "s", messages=600, topics=1, queues=2)
    done = damage("queue-first-file-missing", tmp_path / "s")
    assert not (tmp_path / "s" / done.changes[0].file).exists()
    assert len(walk.mapped_files((tmp_path / "s" / done.changes[0].file).parent)) == 2


CODES = {"preallocated": 2, "queues-without-log": 4, "first-file-not-zero": 2, "large-offsets": 2}


@pytest.mark.parametrize("name", sorted(SHAPES.keys() - {"many-queues"}))
def test_a_shape_holds_what_its_writer_says_and_verify_finds_what_its_name_says(name: str, tmp_path: Path) -> None:
    made = SHAPES[name](tmp_path / "s")
    parts = [f"--commitlog={folder}" for folder in _log_folders(tmp_path / "s")] if name == "multi-path" else []
    result = mqtool("verify", tmp_path / "s", *parts, "--json")
    assert result.code == CODES.get(name, 0), result.stdout
    if name in ("queues-without-log", "deleted-topic", "empty"):
        return
    records = _records(made.root)
    log, queues, index = (result.document[part] for part in ("commitlog", "consumequeue", "index"))
    assert len(records) == made.records == log["messages"]
    assert max(hit.record.phy_offset + hit.record.total_size for hit in records.values()) == made.log_end
    assert (queues["right"], index["expected"]) == (sum(made.queues.values()), made.index_entries)
    assert (log["log_end"], log["blanks"], made.units) == (made.log_end, made.files - 1 - (name == "preallocated"),
                                                           sum(made.queues.values()))


# --- The plain reader, the oracle of fuzz and mutation: it imports nothing of what it judges, and reads real stores.


PLAINLY_READ = ("clean-4.5.1", "clean-plain-4.9.7", "clean-restarts-5.5.0", "killed-ext-5.5.0", "clean-multipath-4.9.7")
CODE_UNDER_TEST = {"formats", "recover", "mqtool", "fixtures"}


@pytest.mark.parametrize("module", [plain, excuses, anatomy], ids=lambda each: each.__name__)
def test_oracle_imports_nothing_of_what_it_judges(module: object) -> None:
    seen: set[str] = set()
    waiting = [str(module.__file__)]  # type: ignore[attr-defined]
    while waiting:
        for node in ast.walk(ast.parse(Path(waiting.pop()).read_text("utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [
                each.name for each in node.names] if isinstance(node, ast.Import) else []
            names += [f"{node.module}.{each.name}" for each in node.names] if isinstance(node, ast.ImportFrom) else []
            for name in set(names) - seen:
                seen.add(name)
                path = Path(*name.split(".")).with_suffix(".py")
                source = Path(__file__).resolve().parents[2] / path
                if name.startswith("tests.") and source.is_file():
                    waiting.append(str(source))
    assert not {name.split(".")[0] for name in seen} & CODE_UNDER_TEST


@pytest.mark.parametrize("name", PLAINLY_READ)
def test_every_record_queue_and_index_entry_of_a_real_store_is_read(name: str) -> None:
    root, known = unpacked(name), manifest(name)
    records = plain.records(root)
    assert len(records) == known["records"]
    for record in records:
        assert b"".join(record.raw().values()) == record.content
    assert len(plain.delivered(root)) == known["units"]
    files = [path.read_bytes() for path in sorted((root / "index").iterdir())]
    geometry = plain.geometry_of(files[0])
    assert geometry is not None
    indexes = [plain.index_file(content, geometry) for content in files]
    assert sum(len(index.entries) for index in indexes) == known["index_entries"]
    for record in records:
        keys = plain.index_keys(record, tags=name.endswith("5.5.0"))
        for text in keys:
            assert any(record.phy_offset in index.offsets(text) for index in indexes), text


def test_hash_of_a_key_is_that_of_java() -> None:
    assert (plain.java_hash("TagA"), plain.java_hash("polygenelubricants")) == (2598919, -2147483648)
    assert plain.key_hash("polygenelubricants") == 0


def test_index_file_of_another_length_and_a_chain_that_loops_do_no_harm() -> None:
    content = next((unpacked("clean-plain-4.9.7") / "index").iterdir()).read_bytes()
    geometry = plain.geometry_of(content)
    assert geometry is not None
    with pytest.raises(ValueError, match="bytes"):
        plain.index_file(content[:-1], geometry)
    file = plain.index_file(content, geometry)
    looped = file._replace(entries=tuple(entry._replace(before=number)
                                         for number, entry in enumerate(file.entries, start=1)))
    assert all(len(list(looped.chain(slot))) <= len(file.entries) for slot in range(geometry.slots))


@pytest.mark.parametrize(("text", "value"), [
    (b'{"a":{0:1,},}', {"a": {"0": 1}}), (b"{'a':'b'}", {"a": "b"}), (b'{/* c */a:1}// d', {"a": 1}),
    (b"\xef\xbb\xbf{}", {}), (b'{"a":1}x', None), (b'{"a":1', None), (b"[]", None), (b"", None), (b'{"a":"x}', None),
])
def test_config_text_is_read_in_the_dialect_of_brokers(text: bytes, value: object) -> None:
    assert plain.config(text) == value


# --- The tests' own tools: store copies are faithful, tree comparisons see what they must, counts add up.


@pytest.mark.parametrize("change", ["content", "mode", "mtime", "new", "gone"])
def test_tree_comparison_sees_every_change(change: str, store: Callable[[str], Path]) -> None:
    root = store("clean-4.5.1")
    target = root / "checkpoint"
    status = target.stat()
    with pytest.raises(AssertionError, match="checkpoint"), assert_unchanged(root):
        if change == "content":
            target.write_bytes(b"x" + target.read_bytes()[1:])
            os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
        elif change == "mode":
            target.chmod(0o600)
        elif change == "mtime":
            os.utime(target, ns=(0, 0))
        elif change == "new":
            (root / "checkpoint.copy").touch()
        else:
            target.unlink()


def test_counts_of_all_tests_add_up_and_a_miss_in_a_failed_one_is_told() -> None:
    def report(when: str, *properties: tuple[str, object]) -> SimpleNamespace:
        return SimpleNamespace(when=when, user_properties=list(properties))

    stats = {
        "passed": [report("call", (PREFIX + "kills", 1200)), report("teardown", (PREFIX + "kills", 5))],
        "failed": [report("call", (PREFIX + "kills", 34), (NOTE + "MISSED a bit", True), ("other", 1))],
    }
    assert list(lines(stats)) == ["    1,234 kills", "MISSED a bit"]
    assert list(lines({})) == []

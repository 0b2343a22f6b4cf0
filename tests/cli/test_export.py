"""export: lines, tables, raw records and stores, whole or not at all."""

from __future__ import annotations

import base64
import io
import json
import os
import pty
import random
import shutil
import signal
import struct
import subprocess
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pyarrow.csv
import pyarrow.parquet
import pytest

from fixtures.damage import damage
from fixtures.synth import StoreWriter, synth_store
from formats import sysflag
from formats.record import HEAD
from formats.timer import TIMER_CHECK, TimerCheck
from mqtool.commands.export import ExportForm, Filter, Reading
from mqtool.options import BrokerChoice, EngineChoice
from mqtool.printer import Printer
from recover.export.select import Wanted, parse_time
from recover.export.send import read_messages
from recover.export.sources import scan_source, source_of
from recover.export.write import Csv, Ndjson, Resumed, Table, export_lines, output_file, writer_for
from recover.log.scan import LocalEngine
from recover.store.columns import DEFAULT_MEMORY
from recover.store.store import Store
from tests.cli.runner import Result, mqtool
from tests.support import plain_reader as plain
from tests.support.sampling import few, sampled
from tests.support.stores import broker_conf, flip, real_store, struck_store, unpacked, write_at
from tests.support.trees import assert_unchanged

# --- `mqtool export`: every intact message, whatever is broken around it, counted against the plain reader.


STORE = "clean-5.3.3"
#: With messages of six topics.
SMALL = "kinds/clean-services-5.5.0"
START_OF_2024 = 1_704_067_200_000
EVERYTHING = ("--include", "stale,superseded,system")


def exported(out: Path, *arguments: object) -> list[dict[str, Any]]:
    """The lines of an NDJSON export that ends with 0, without where each was read."""
    result = mqtool("export", *arguments, "-o", out, "--json")
    assert result.code == 0, result.stderr
    lines = [json.loads(line) for line in out.read_bytes().splitlines()]
    without_places(lines)
    assert result.document["messages"] == len(lines)
    assert result.document["complete"] is True
    return lines


def without_places(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same lines without where each was read: the same messages of other files compare equal then."""
    for line in lines:
        del line["place"]
    return lines


@cache
def sound(*arguments: object) -> list[dict[str, Any]]:
    """The lines of an export of the sound store, for all tests of one process: to look at, not to change."""
    with TemporaryDirectory() as folder:
        return exported(Path(folder) / "out.ndjson", unpacked(STORE), *arguments)


def body_of(message: dict[str, Any]) -> bytes:
    body = message["body"]
    return base64.b64decode(body) if message["body_encoding"] == "base64" else body.encode()


@pytest.mark.parametrize("name", [
    "clean-4.5.1", "clean-v2-5.5.0", "killed-v2-ipv6-5.3.3",
])
def test_every_record_comes_out_as_it_was_stored(name: str, tmp_path: Path) -> None:
    root = unpacked(name)
    with assert_unchanged(root):
        found = exported(tmp_path / "out.ndjson", root, "--raw-body", *EVERYTHING)
    due = plain.records_by_place(root)
    assert {message["phy_offset"] for message in found} == due.keys()
    assert len(found) == len(due)
    for message in found:
        record = due[message["phy_offset"]]
        assert (message["stored_topic"], message["stored_queue"], message["queue_offset"], message["store_time"]) == (
            record.topic, record.queue_id, record.queue_offset, record.store_time)
        assert message["size"] == record.size
        assert body_of(message) == record.body
        assert message["unique_key"] == record.properties.get("UNIQ_KEY")
        assert message["tags"] == record.properties.get("TAGS")


def test_messages_of_the_brokers_own_topics_stay_out_and_delayed_ones_come_under_their_real_topic() -> None:
    found = sound()
    assert not [message for message in found if message["topic"].startswith(("RMQ_SYS", "rmq_sys", "SCHEDULE_TOPIC"))]
    delayed = [message for message in found if message["kind"] == "delayed"]
    assert {message["stored_topic"] for message in delayed} == {"SCHEDULE_TOPIC_XXXX"}
    half = [message for message in found if message["kind"] == "half"]
    assert half
    assert all(message["topic"] == message["properties"]["REAL_TOPIC"] for message in [*half, *delayed])


def test_a_folder_of_log_files_and_a_single_one_are_enough(tmp_path: Path) -> None:
    log = unpacked(STORE) / "commitlog"
    whole = sound(*EVERYTHING)
    folder = exported(tmp_path / "folder.ndjson", log, *EVERYTHING)
    assert {m["phy_offset"] for m in folder} == {m["phy_offset"] for m in whole}
    second = sorted(log.iterdir())[1]
    copy = tmp_path / "a-copy.bin"
    copy.write_bytes(second.read_bytes())
    for file in (second, copy):
        alone = exported(tmp_path / f"{file.name}.ndjson", file, *EVERYTHING)
        assert [m["phy_offset"] for m in alone] == sorted(
            m["phy_offset"] for m in whole if m["phy_offset"] >= int(second.name))


def pieces(log: Path) -> list[bytes]:
    """The content of a log's files cut between records, some of them in the middle of a file."""
    found = []
    for path in sorted(log.iterdir()):
        content = path.read_bytes()
        ends = [at.phy_offset + at.size - int(path.name) for at in plain.chain(content, int(path.name))]
        cuts = [0, ends[len(ends) // 3], ends[len(ends) // 2], ends[-1]]
        found += [content[start:stop] for start, stop in pairwise(cuts)]
    return found


def test_every_record_of_pieces_of_log_files_comes_out(tmp_path: Path) -> None:
    log = unpacked(STORE) / "commitlog"
    whole = exported(tmp_path / "whole.ndjson", log, *EVERYTHING)
    folder = tmp_path / "pieces"
    folder.mkdir()
    for number, content in enumerate(pieces(log)):
        (folder / f"piece-{number}").write_bytes(content)
    with assert_unchanged(folder):
        found = exported(tmp_path / "out.ndjson", *sorted(folder.iterdir()), *EVERYTHING)
    assert sorted(found, key=itemgetter("phy_offset")) == whole
    first = folder / "piece-0"  # it ends with a record, without the bytes that a broker leaves free after one
    due = [line for line in whole if line["phy_offset"] < first.stat().st_size]
    assert exported(tmp_path / "first.ndjson", first, *EVERYTHING) == due
    named = tmp_path / "named" / "0".zfill(20)
    named.parent.mkdir()
    first.rename(named)
    assert exported(tmp_path / "named.ndjson", named.parent, *EVERYTHING) == due
    store = tmp_path / "store"
    assert mqtool("export", named, *sorted(folder.iterdir()), "-o", store, "--format", "store").code == 0
    assert exported(tmp_path / "made.ndjson", store, *EVERYTHING) == whole


def test_every_record_of_an_image_of_a_disk_comes_out(tmp_path: Path) -> None:
    """Files in pieces, in any order, between other bytes; a record in the body of a message is none of its own."""
    log = unpacked(STORE) / "commitlog"
    whole = exported(tmp_path / "whole.ndjson", log, *EVERYTHING)
    chance = random.Random(3)
    parts = pieces(log)
    chance.shuffle(parts)
    nesting = StoreWriter(tmp_path / "nesting", mapped_file_size=1 << 20)
    nesting.put("Nested", parts[0][:4096])
    nesting.close()
    outer = next((tmp_path / "nesting" / "commitlog").iterdir()).read_bytes()[:6000]
    image = tmp_path / "disk.img"
    image.write_bytes(b"".join(chance.randbytes(chance.randrange(9000)) + part for part in [*parts, outer]))
    with assert_unchanged(tmp_path / "nesting"):
        found = exported(tmp_path / "out.ndjson", image, *EVERYTHING)
    inner = [line for line in found if line["topic"] == "Nested"]
    assert len(inner) == 1
    assert sorted((line for line in found if line["topic"] != "Nested"), key=itemgetter("phy_offset")) == whole
    assert exported(tmp_path / "one.ndjson", image, "--topic", "TopicA", *EVERYTHING) == [
        line for line in found if line["topic"] == "TopicA"]
    assert mqtool("export", image, "-o", tmp_path / "spark.ndjson", "--engine", "spark").code == 16


def test_a_file_with_messages_under_a_name_that_is_no_place_is_told(tmp_path: Path) -> None:
    root = real_store(STORE, tmp_path)
    log = root / "commitlog"
    first = sorted(log.iterdir())[0]
    (log / "README").write_text("kept by hand")
    assert mqtool("export", root, "-o", tmp_path / "whole").code == 0
    first.rename(log / "saved.bin")
    for source in (root, log):
        result = mqtool("export", source, "-o", tmp_path / f"{source.name}.ndjson", "--json")
        assert (result.code, result.document["complete"]) == (8, False)
        assert any("saved.bin" in note for note in result.document["notes"])


def test_csv_parquet_and_ndjson_hold_the_same_rows(tmp_path: Path) -> None:
    lines = sound()
    for kind in ("csv", "parquet"):
        out = tmp_path / f"out.{kind}"
        assert mqtool("export", unpacked(STORE), "-o", out, "--format", kind).code == 0
        options = pyarrow.csv.ConvertOptions(strings_can_be_null=True, quoted_strings_can_be_null=False)
        parsing = pyarrow.csv.ParseOptions(newlines_in_values=True)
        table = (pyarrow.csv.read_csv(out, convert_options=options, parse_options=parsing)
                 if kind == "csv" else pyarrow.parquet.read_table(out))
        assert table.num_rows == len(lines)
        for name in ("topic", "queue", "queue_offset", "phy_offset", "store_time", "body_encoding", "msg_id"):
            assert [str(value) for value in table.column(name).to_pylist()] == [str(line[name]) for line in lines]
        properties = [json.loads(text) for text in table.column("properties").to_pylist()]
        assert properties == [line["properties"] for line in lines]


def test_raw_is_the_records_one_after_another(tmp_path: Path) -> None:
    out = tmp_path / "out.raw"
    assert mqtool("export", unpacked("clean-plain-4.9.7"), "-o", out, "--format", "raw", *EVERYTHING).code == 0
    due = plain.records_by_place(unpacked("clean-plain-4.9.7"))
    assert out.read_bytes() == b"".join(due[offset].content for offset in sorted(due))


@few(("filters", "fits"), [
    (("--topic", "Topic?"), lambda m: len(m["topic"]) == 6 and m["topic"].startswith("Topic")),
    (("--topic", "TopicA", "--queue", 1), lambda m: m["topic"] == "TopicA" and m["queue"] == 1),
    (("--queue-offsets", "5:9"), lambda m: 5 <= m["queue_offset"] < 9),
    (("--phy-offsets", "100000:200000"), lambda m: 100000 <= m["phy_offset"] < 200000),
    (("--tag", "Tag4"), lambda m: m["tags"] == "Tag4"),
    (("--property", "TAGS=Tag1"), lambda m: m["properties"].get("TAGS") == "Tag1"),
    (("--include", "system", "--topic", "RMQ_SYS*"), lambda m: m["stored_topic"].startswith("RMQ_SYS")),
], quick=(0, 2, 5))
def test_a_filter_leaves_what_fits(filters: tuple[object, ...], fits: Callable[[dict[str, Any]], bool]) -> None:
    every = sound("--include", "system") if "--include" in filters else sound()
    due = [m for m in every if fits(m) or ("--topic" in filters and fits({**m, "topic": m["stored_topic"]}))]
    assert sound(*filters) == due != []


def test_times_are_iso_with_a_zone_or_ms_and_until_is_open() -> None:
    every = sound()
    middle = sorted(m["store_time"] for m in every)[len(every) // 2]
    late, early = sound("--since", middle), sound("--until", middle)
    assert {m["phy_offset"] for m in late} == {m["phy_offset"] for m in every if m["store_time"] >= middle}
    assert len(early) + len(late) == len(every)
    assert sound("--since", "2001-01-01 01:58+08:00") == every


def test_an_iso_time_is_its_millisecond_and_one_between_two_the_later(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path / "store", start=START_OF_2024, step_ms=1)
    for number in range(1000):
        writer.put("Orders", b"%d" % number)
    writer.close()
    for number in range(0, 1000, 37):
        text = f"2024-01-01T00:00:00.{number:03}Z"
        (first, *_) = exported(tmp_path / f"{number}.ndjson", tmp_path / "store", "--since", text, "--limit", 1)
        assert first["store_time"] == START_OF_2024 + number, text
    assert parse_time("2024-01-01T00:00:00.0005Z", "--since") == START_OF_2024 + 1
    assert parse_time("1969-12-31T23:59:59.999Z", "--since") == -1


def test_half_messages_of_transactions_in_rocksdb_come_under_their_real_topic(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path / "store")
    writer.put("RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC", b"body", {"REAL_TOPIC": "Orders", "REAL_QID": "3", "UNIQ_KEY": "U"})
    writer.put("RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC", b"\0", {"TRANS_OFFSET": "0"})
    writer.close()
    (half,) = exported(tmp_path / "out.ndjson", tmp_path / "store", "--topic", "Orders")
    assert (half["kind"], half["topic"], half["queue"]) == ("half", "Orders", 3)


def test_one_message_by_key_and_by_id() -> None:
    one = next(m for m in sound() if m["keys"])
    assert one in sound("--key", one["keys"].split()[0])
    assert sound("--msg-id", one["msg_id"]) == [one]
    assert one in sound("--msg-id", one["unique_key"])


def test_a_key_finds_messages_that_are_rolled_back(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path / "store")
    for kind in (0, sysflag.TRANSACTION_ROLLBACK):
        writer.put("Topic", b"body", {"KEYS": "one two"}, sys_flag=kind)
    writer.close()
    filters = ("--key", "two", "--topic", "Topic")
    assert [message["transaction"] for message in exported(tmp_path / "out.ndjson", tmp_path / "store", *filters)] == [
        "none", "rollback"]


def test_a_number_of_any_length_is_read(tmp_path: Path) -> None:
    root, long = tmp_path / "store", "9" * 5_000
    writer = StoreWriter(root)
    writer.put("SCHEDULE_TOPIC_XXXX", b"body", {"REAL_TOPIC": "Topic", "REAL_QID": long, "DELAY": "1"})
    writer.put("rmq_sys_wheel_timer", b"body", {"REAL_TOPIC": "Topic", "REAL_QID": "0", "TIMER_OUT_MS": long})
    writer.close()
    (root / "config" / "timercheck").write_bytes(TIMER_CHECK.encode(TimerCheck(1, 52, 1, 1, 0, 0, 0)))
    assert [message["queue"] for message in exported(tmp_path / "out.ndjson", root)] == [0, 0]
    assert mqtool("verify", root, "--json").found("commitlog-unserved-message")


def test_what_a_start_would_cut_comes_out(store: Callable[[str], Path], tmp_path: Path) -> None:
    root = store("clean-manyfiles-5.3.3")
    damage("crash-bit-without-checkpoint", root, 1)
    said = mqtool("predict", root, "--broker", "5.3.3", "--json").document
    assert said["lost_messages"]
    lost = exported(tmp_path / "lost.ndjson", root, "--lost-by", "5.3.3", "--include", "system")
    assert len(lost) == said["lost_messages"]
    assert min(m["phy_offset"] for m in lost) >= said["max_phy"]


def test_damaged_messages_come_with_what_is_doubtful(store: Callable[[str], Path], tmp_path: Path) -> None:
    root = store(STORE)
    before = plain.records_by_place(root)
    (lost,) = damage("bit-in-body", root, 5).lost
    (message,) = exported(tmp_path / "damaged.ndjson", root, "--damaged")
    assert (message["phy_offset"], message["state"], message["damage"]) == (lost, "damaged", "bad-body-crc")
    assert message["doubtful"] == ["body"]
    assert message["stored_topic"] == before[lost].topic
    assert message["queue_offset"] == before[lost].queue_offset


def test_without_its_log_a_store_has_no_complete_list_of_damaged_messages(
    store: Callable[[str], Path], tmp_path: Path,
) -> None:
    root = store(STORE)
    shutil.rmtree(root / "commitlog")
    for command, key in ((("export", root, "-o", tmp_path / "x.ndjson", "--damaged"), None),
                         (("predict", root, "--loss-out", tmp_path / "y.ndjson"), "loss_list")):
        done = mqtool(*command, "--json")
        answer = done.document if key is None else done.document[key]
        assert done.code != 0 and answer["complete"] is False and "no commitlog" in answer["notes"][0]


def test_what_only_queues_remember_of_a_lost_page_comes_out(store: Callable[[str], Path], tmp_path: Path) -> None:
    root = store(STORE)
    before = plain.records_by_place(root)
    lost = damage("page-zeroed", root, 5).lost
    found = exported(tmp_path / "damaged.ndjson", root, "--damaged")
    places = {(m["stored_topic"], m["stored_queue"], m["queue_offset"]) for m in found}
    due = {(r.topic, r.queue_id, r.queue_offset) for r in (before[offset] for offset in lost) if r.has_unit}
    assert due <= places


@pytest.mark.parametrize(("name", "recipe", "reason"), [
    (STORE, "record-older-whole", "overwritten"), ("clean-plain-4.9.7", "log-file-of-another-store", "other-log"),
])
def test_messages_that_other_records_replaced_come_out_and_not_these(
    name: str, recipe: str, reason: str, tmp_path: Path,
) -> None:
    root = real_store(name, tmp_path)
    due = plain.records_by_place(root)
    damage(recipe, root, 1)
    found = exported(tmp_path / "damaged.ndjson", root, "--damaged")
    assert len(found) == mqtool("verify", root, "--json").document["commitlog"]["damaged_messages"] > 0
    for message in found:
        record = due[message["phy_offset"]]
        assert (message["damage"], message["body"], message["properties"]) == (reason, None, None)
        assert (message["stored_topic"], message["stored_queue"], message["queue_offset"]) == (
            record.topic, record.queue_id, record.queue_offset)


def test_the_real_topic_of_a_damaged_message_is_as_doubtful_as_its_properties(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path / "store", mapped_file_size=1 << 20)
    records = [writer.put("Plain", b"body", {"TAGS": "t"}),
               *(writer.put("RMQ_SYS_TRANS_HALF_TOPIC", b"body", {"REAL_TOPIC": "Topic", "REAL_QID": "3"})
                 for _ in range(3))]
    writer.put("Plain", b"last")
    root = writer.close().root
    log = root / "commitlog" / f"{0:020}"
    for record in records[:2]:
        flip(log, record.phy_offset + HEAD.offset("magic"))
    flip(log, records[2].phy_offset + HEAD.offset("body_crc"))
    at = log.read_bytes().index(b"REAL_TOPIC", records[3].phy_offset)
    write_at(log, at, bytes(records[3].phy_offset + records[3].total_size - at))
    plain_one, half, with_body, zeroed = exported(tmp_path / "damaged.ndjson", root, "--damaged")
    assert (plain_one["topic"], plain_one["properties"], plain_one["kind"]) == ("Plain", None, None)
    assert not {"topic", "queue"} & {*plain_one["doubtful"]}
    assert (half["topic"], half["properties"], half["kind"]) == ("RMQ_SYS_TRANS_HALF_TOPIC", None, "half")
    assert {"topic", "queue"} <= {*half["doubtful"]}
    assert (with_body["topic"], with_body["queue"], with_body["doubtful"]) == ("Topic", 3, ["body"])
    assert {"topic", "queue", "properties"} <= {*zeroed["doubtful"]}
    table = tmp_path / "damaged.parquet"
    assert mqtool("export", root, "-o", table, "--damaged").code == 0
    assert pyarrow.parquet.read_table(table).column("properties").to_pylist()[0] is None


@few(("field", "option"), [
    ("topic", "--topic"), ("queue", "--queue"), ("tags", "--tag"), ("unique_key", "--key"), ("msg_id", "--msg-id"),
], quick=(0, 3))
def test_filters_take_of_damaged_messages_what_is_legible(
    field: str, option: str, store: Callable[[str], Path], tmp_path: Path,
) -> None:
    root = store(STORE)
    damage("page-zeroed", root, 5)
    damage("bit-in-body", root, 7)
    found = exported(tmp_path / "damaged.ndjson", root, "--damaged")
    value = next(item[field] for item in reversed(found) if item[field] is not None)
    same = [item for item in found if item[field] == value]
    assert same and len(same) < len(found)
    assert exported(tmp_path / "some.ndjson", root, "--damaged", option, str(value)) == same


def test_a_cut_export_goes_on_after_its_last_whole_line(tmp_path: Path) -> None:
    whole = tmp_path / "whole.ndjson"
    exported(whole, unpacked(STORE))
    out, part = tmp_path / "out.ndjson", tmp_path / "out.ndjson.part"
    part.write_bytes(whole.read_bytes()[:100_001])
    assert mqtool("export", unpacked(STORE), "-o", out).code == 8
    assert mqtool("export", unpacked(STORE), "-o", out, "--resume").code == 0
    assert out.read_bytes() == whole.read_bytes()
    assert not part.exists()


def test_an_export_with_other_options_is_not_continued(tmp_path: Path) -> None:
    root = unpacked("killed-compressed-5.3.3")
    exported(tmp_path / "stored.ndjson", root, "--raw-body")
    cut = (tmp_path / "stored.ndjson").read_bytes()
    last = cut.index(b"as stored, on request")
    (tmp_path / "out.ndjson.part").write_bytes(cut[: cut.index(b"\n", last) + 1])
    assert mqtool("export", root, "-o", tmp_path / "out.ndjson", "--resume").code == 8
    assert mqtool("export", root, "-o", tmp_path / "out.ndjson", "--resume", "--raw-body").code == 0
    assert (tmp_path / "out.ndjson").read_bytes() == cut


def test_what_is_left_of_a_format_that_cannot_be_continued_is_to_be_removed(tmp_path: Path) -> None:
    (tmp_path / "out.csv.part").touch()
    result = mqtool("export", unpacked(STORE), "-o", tmp_path / "out.csv", "--json")
    assert result.code == 8
    assert "--resume" not in result.document["error"]["remedy"]


def test_a_cut_export_goes_on_after_a_damaged_message_whose_place_is_not_known(tmp_path: Path) -> None:
    lines = [b'{"phy_offset":null,"state":"damaged"}\n', b'{"phy_offset":7,"state":"damaged"}\n']
    (tmp_path / "out.ndjson.part").write_bytes(lines[0] + lines[1][:9])
    with output_file(tmp_path / "out.ndjson", resume=True) as (stream, left):
        writer = writer_for("ndjson", stream, left)
        writer.take(b"".join(lines))
        writer.close()
    assert (tmp_path / "out.ndjson").read_bytes() == b"".join(lines)


def test_the_rest_of_another_export_is_refused(tmp_path: Path) -> None:
    exported(tmp_path / "other.ndjson", unpacked("killed-5.5.0"))
    (tmp_path / "out.ndjson.part").write_bytes((tmp_path / "other.ndjson").read_bytes()[:300_000])
    assert mqtool("export", unpacked(STORE), "-o", tmp_path / "out.ndjson", "--resume").code == 8


def test_a_stream_goes_to_stdout_and_the_words_to_stderr() -> None:
    done = subprocess.run([sys.executable, "-m", "mqtool", "export", unpacked(STORE), "-o", "-"], capture_output=True)
    assert done.returncode == 0
    assert without_places([json.loads(line) for line in done.stdout.splitlines()]) == sound()
    assert b"written to stdout" in done.stderr


@pytest.mark.parametrize("kind", ["ndjson", "csv", "parquet"])
def test_bodies_that_are_many_times_as_large_as_the_log_are_not_collected(kind: str, tmp_path: Path) -> None:
    root, body = tmp_path / "store", b"many times " * (1 << 15)
    writer = StoreWriter(root, mapped_file_size=1 << 20)
    for number in range(40):
        writer.put("Orders", b"a small one", {"KEYS": str(number)})
        if number % 4 == 0:
            writer.put("Orders", zlib.compress(body), {"KEYS": "large"}, sys_flag=sysflag.COMPRESSED)
    writer.close()
    scanned = scan_source(source_of(Store.open(root)), LocalEngine(), memory=DEFAULT_MEMORY)
    out, taken = io.BytesIO(), []
    lines = writer_for(kind, out, Resumed())
    assert isinstance(lines, (Ndjson, Csv, Table))
    take = lines.take
    lines.take = lambda piece: (taken.append(len(piece)), take(piece))[1]  # type: ignore[method-assign]
    counts, _ = export_lines(scanned, Wanted(), lines, threads=2, note=pytest.fail)
    lines.close()
    assert counts.total() == 50
    assert len(body) < max(taken) < 2 * len(body)
    if kind == "parquet":
        found = pyarrow.parquet.read_table(io.BytesIO(out.getvalue())).column("phy_offset").to_pylist()
        assert found == sorted(found) and len(found) == 50


def test_counts_are_those_of_the_lines(tmp_path: Path) -> None:
    result: Result = mqtool("export", unpacked(STORE), "-o", tmp_path / "out.ndjson", "--json")
    lines = [json.loads(line) for line in (tmp_path / "out.ndjson").read_bytes().splitlines()]
    assert result.document["topics"] == dict(sorted(Counter(line["topic"] for line in lines).items()))
    kinds = Counter((line["topic"], line["kind"] or "ordinary") for line in lines)
    counts = result.document["kinds"]
    assert {(topic, kind): number for topic in counts for kind, number in counts[topic].items()} == kinds
    sent = mqtool("send", tmp_path / "out.ndjson", "--endpoints", "127.0.0.1:1", "--dry-run", "--json").document
    assert sent["topics"] == {topic: n for (topic, kind), n in sorted(kinds.items()) if kind == "ordinary"}
    assert len(sound("--limit", 3)) == 3


@pytest.mark.parametrize("recipe", ["log-file-of-another-store", "record-older-whole"])
def test_records_of_something_else_are_no_messages_and_make_none_superseded(
    recipe: str, store: Callable[[str], Path], tmp_path: Path,
) -> None:
    name = "killed-manyfiles-4.9.7"
    root = store(name)
    hit = damage(recipe, root, 3).changed
    due = [record.phy_offset for record in plain.records(unpacked(name)) if record.phy_offset not in hit]
    found = exported(tmp_path / "out.ndjson", root, *EVERYTHING)
    assert Counter(message["state"] for message in found) == {"live": len(due)}
    assert [message["phy_offset"] for message in found] == due
    verified = mqtool("verify", root, "--json").document["commitlog"]
    assert (verified["messages"], verified["superseded"]) == (len(due), 0)
    key = next(message["unique_key"] for message in found if message["unique_key"])
    scanned = mqtool("query", root, "--scan", "--key", key, "--json").document["messages"]
    assert [message["superseded"] for message in scanned] == [False]


def test_a_configuration_says_where_store_and_log_are(tmp_path: Path) -> None:
    name = "killed-multipath-5.3.3"
    root = real_store(name, tmp_path)
    conf = broker_conf(name, root, tmp_path / "broker.conf")
    due = plain.records_by_place(root).keys()
    for number, given in enumerate([(root, "--broker-conf", conf), ("--broker-conf", conf)]):
        found = exported(tmp_path / f"{number}.ndjson", *given, *EVERYTHING)
        assert {message["phy_offset"] for message in found} == due
        sent = mqtool("send", *given, "--endpoints", "127.0.0.1:1", "--dry-run", "--json").document
        assert sent["planned"] == len(due) and sent["complete"]


def test_a_topic_that_no_message_has_is_named_with_the_nearest(tmp_path: Path) -> None:
    result = mqtool("export", unpacked(STORE), "-o", tmp_path / "none.ndjson", "--topic", "TopicZ")
    assert result.code == 0 and "no message of a topic that matches TopicZ; the nearest is Topic" in result.stderr
    assert f"next: mqtool inspect {unpacked(STORE)}" in result.stdout
    assert "nearest" not in mqtool("export", unpacked(STORE), "-o", tmp_path / "a.ndjson", "--topic", "*A").stderr


def test_the_messages_inside_a_batch_come_out_one_by_one(tmp_path: Path) -> None:
    root = unpacked("kinds/clean-batch-5.5.0")
    folded, single = exported(tmp_path / "folded", root), exported(tmp_path / "single", root, "--unfold")
    batches = {m["phy_offset"]: m for m in folded if "INNER_NUM" in m["properties"]}
    inside = [m for m in single if m["phy_offset"] in batches]
    assert [(m["phy_offset"], m["queue_offset"]) for m in inside] == [
        (offset, batch["queue_offset"] + number) for offset, batch in batches.items()
        for number in range(int(batch["properties"]["INNER_NUM"]))] != []
    assert all(m["body"].startswith("body of message ") for m in inside)
    assert [m for m in single if m["phy_offset"] not in batches] == [
        m for m in folded if m["phy_offset"] not in batches]


def test_a_store_with_batches_leads_to_the_start_that_writes_their_queues(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert mqtool("export", unpacked("kinds/clean-batch-5.5.0"), "-o", out, "--format", "store").code == 0
    seen = mqtool("verify", out, "--json")
    (missing,) = seen.found("part-missing")
    assert (seen.code, missing["severity"]) == (2, "info")
    assert seen.document["next"][0]["command"] == f"mqtool recover {out} --dry-run"
    said = mqtool("recover", out, "--dry-run", "--json")
    assert said.document["next"][0]["command"] == "start the broker"
    (out / "abort").unlink()
    assert mqtool("verify", out, "--json").found("part-missing")[0]["severity"] == "warning"


def test_a_queue_offset_inside_a_batch_finds_the_batch(tmp_path: Path) -> None:
    root = unpacked("kinds/clean-batch-5.5.0")
    where = ("--topic", "Batched", "--queue", 0, "--queue-offsets", "7:12")
    batches = exported(tmp_path / "folded", root, *where)
    assert [(m["queue_offset"], m["properties"]["INNER_NUM"]) for m in batches] == [(5, "5"), (10, "5")]
    single = exported(tmp_path / "single", root, *where, "--unfold")
    assert [m["queue_offset"] for m in single] == [7, 8, 9, 10, 11]
    result = mqtool("query", root, "--topic", "Batched", "--queue", 0, "--offset", 7, "--scan", "--json")
    assert [m["queue_offset"] for m in result.document["messages"]] == [5]


def packed(*messages: tuple[bytes, dict[str, str]]) -> bytes:
    """The body of a batch (`MessageDecoder.encodeMessages`)."""
    content = b""
    for body, properties in messages:
        text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items()).encode()
        content += struct.pack(">iiiii", 22 + len(body) + len(text), 0, 0, 7, len(body)) + body
        content += struct.pack(">h", len(text)) + text
    return content


def test_only_a_message_that_clients_unpack_is_unfolded_from_a_store_as_from_a_file(tmp_path: Path) -> None:
    body = packed((b"one", {"KEYS": "k1", "UNIQ_KEY": "u1"}), (b"", {"KEYS": "k2"}),
                  (b"\xff", {"KEYS": "k3 k4", "TAGS": "t"}))
    batch, writer = sysflag.INNER_BATCH | sysflag.NEED_UNWRAP, StoreWriter(tmp_path / "store")
    number = {"INNER_NUM": "3", "INNER_BASE": "0"}
    writer.put("Whole", body, number)
    writer.put("Whole", body, number, sys_flag=sysflag.INNER_BATCH)
    writer.put("Whole", body[:-1], number, sys_flag=batch)
    writer.put("Parts", body, {}, sys_flag=batch)
    writer.put("Parts", zlib.compress(body), {**number, "KEYS": "k1 k3 k4"}, sys_flag=batch | sysflag.COMPRESSED)
    writer.close()
    out = tmp_path / "single"
    single = exported(out, tmp_path / "store", "--unfold")
    assert [(m["queue_offset"], body_of(m)) for m in single] == [
        (0, body), (1, body), (2, body[:-1]), (0, b"one"), (1, b""), (2, b"\xff"), (1, b"one"), (2, b""), (3, b"\xff")]
    assert out.read_bytes() == by_message(tmp_path / "reference", tmp_path / "store", "--unfold")
    assert mqtool("export", tmp_path / "store", "-o", tmp_path / "folded").code == 0
    for file in (out, tmp_path / "folded"):
        read = [json.loads(msgspec.json.encode(message)) for message in read_messages(file)]
        assert without_places(read) == single
    # the index, and so the row, of a batch has the keys of the whole alone
    for key, bodies in (("k1", [b"one", b"one"]), ("k4", [b"\xff", b"\xff"]), ("u1", [b"one", b"one"])):
        found = exported(tmp_path / key, tmp_path / "store", "--unfold", "--key", key)
        assert [body_of(m) for m in found] == bodies


def test_the_batch_queues_of_an_exported_store_are_left_to_the_first_start(tmp_path: Path) -> None:
    root = unpacked("kinds/clean-batch-5.5.0")
    for name, topic in (("all", "*"), ("batches", "Batched"), ("others", "Orders")):
        result = mqtool("export", root, "-o", tmp_path / name, "--format", "store", "--topic", topic, "--json")
        assert result.code == 0
        told = any("writes the batch queues of Batched" in note for note in result.document["notes"])
        assert told == (tmp_path / name / "abort").exists() == (topic != "Orders")
        assert (tmp_path / name / "checkpoint").exists() == (topic == "Orders")
    # with one of them repaired, no broker would write the queues
    done = mqtool("recover", tmp_path / "all", "--yes", "--json").document
    assert done["abort_stays_for"] == ["batchconsumequeue/Batched"]
    assert (tmp_path / "all" / "abort").exists() and not (tmp_path / "all" / "checkpoint").exists()
    assert "markers" not in mqtool("export", root, "-o", tmp_path / "few", "--format", "store", "--topic", "Batched",
                                   "--queue-offsets", "7:12").stderr


def test_answers_to_requests_are_the_clusters_and_a_topic_of_that_name_is_its_users(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path / "store")
    writer.put("lab_REPLY_TOPIC", b"answer", {"MSG_TYPE": "reply", "CLUSTER": "lab"})
    writer.put("lab_REPLY_TOPIC", b"mine", {"MSG_TYPE": "other"})
    writer.put("Orders", b"reply", {"MSG_TYPE": "reply"})
    writer.close()
    for more, bodies in (((), [b"mine", b"reply"]), (("--include", "system"), [b"answer", b"mine", b"reply"])):
        found = exported(tmp_path / f"out{len(more)}", tmp_path / "store", *more)
        assert [body_of(m) for m in found] == bodies
        assert [m["kind"] for m in found] == (["reply", None, None] if more else [None, None])
        assert (tmp_path / f"out{len(more)}").read_bytes() == by_message(
            tmp_path / f"reference{len(more)}", tmp_path / "store", *more)


def test_a_log_that_changes_while_it_is_exported_does_not_fill_the_notes(tmp_path: Path) -> None:
    root = tmp_path / "store"
    synth_store(root, messages=3_000, mapped_file_size=2 << 20)
    reading = Reading(Printer(), BrokerChoice(), EngineChoice(), Filter(), ExportForm())
    source = source_of(Store.open(root))
    reading.scanned_source(source)
    (file,) = (root / "commitlog").iterdir()
    os.truncate(file, 1_000)
    assert len(list(reading.all([source]))) < 10
    assert reading.incomplete
    assert len(reading.notes) == 1_000 and reading.notes[-1] == "further ranges and records are not listed"


def test_a_second_run_leaves_the_file_of_the_first_alone(tmp_path: Path) -> None:
    out, part = tmp_path / "out.ndjson", tmp_path / "out.ndjson.part"
    with output_file(out, resume=False, keeps=True) as (stream, _):
        stream.write(b'{"a line": "cut')
        stream.flush()
        result = mqtool("export", unpacked(STORE), "-o", out, "--resume", "--json")
        assert result.code == 8
        assert str(part) in result.document["error"]["message"]
        assert part.read_bytes() == b'{"a line": "cut'
    assert out.exists() and not part.exists()


@pytest.mark.parametrize(("option", "value", "messages"), [
    ("--since", "9" * 5000, 0), ("--until", "9" * 5000, 3), ("--phy-offsets", "9" * 5000 + ":", 0),
    ("--queue-offsets", ":" + "9" * 5000, 3), ("--limit", "9" * 30, 3), ("--until", "9999-12-31T23:59:59-12:00", 3),
])
def test_a_filter_takes_a_number_of_any_length(option: str, value: str, messages: int, tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path / "store")
    for _ in range(3):
        writer.put("Topic", b"body")
    writer.close()
    assert len(exported(tmp_path / "out.ndjson", tmp_path / "store", option, value)) == messages


@pytest.mark.parametrize("arguments", [
    ("-o", "-", "--json"), (), ("-o", "x", "--include", "ghosts"), ("-o", "x", "--property", "K"),
    ("-o", "x", "--queue-offsets", "9"), ("-o", "x", "--format", "csv", "--resume"),
    ("-o", "x", "--since", "2026-11-21 01:58"), ("-o", "x", "--since", "yesterday"),
    ("-o", "x", "--since", "10", "--until", "5"), ("-o", "x", "--since", ""),
    ("-o", "x", "--since", f"-{'9' * 400}w"),
    *(("-o", "x", "--format", "store", *no_store) for no_store in (
        ("--damaged",), ("--unfold",), ("--raw-body",), ("--include", "stale"), ("--resume",))),
])
def test_what_cannot_go_together_is_a_usage_error(
    arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert mqtool("export", unpacked(STORE), *arguments).code == 16
    assert not list(tmp_path.iterdir())


def test_nothing_is_written_into_a_store_nor_over_a_file(store: Callable[[str], Path], tmp_path: Path) -> None:
    root = store(STORE)
    with assert_unchanged(root):
        assert mqtool("export", root, "-o", root / "out.ndjson").code == 16
    there = tmp_path / "there"
    there.write_text("mine")
    assert mqtool("export", root, "-o", there).code == 8
    assert there.read_text() == "mine"


@pytest.mark.parametrize("name", [".", "/", ""])
def test_a_folder_is_no_output_file(name: str) -> None:
    assert mqtool("export", unpacked(STORE), "-o", name).code == 8


def test_a_place_that_is_none_is_a_usage_error(tmp_path: Path) -> None:
    assert mqtool("export", tmp_path / "nothing", "-o", tmp_path / "out").code == 16
    (tmp_path / "noise").write_bytes(b"\xff" * 5000)
    assert mqtool("export", tmp_path / "noise", "-o", tmp_path / "out").code == 16


def by_message(out: Path, *arguments: object) -> Any:
    """An export whose every line is made from a message: with a limit compiled code has no part in it."""
    assert mqtool("export", *arguments, "-o", out, "--limit", 1 << 40).code == 0
    return content_of(out)


def content_of(out: Path) -> Any:
    return pyarrow.parquet.read_table(out) if "parquet" in out.name else out.read_bytes()


@pytest.mark.parametrize(("arguments", "name"), [
    *sampled((
        (), EVERYTHING, ("--raw-body",), ("--unfold",), ("--topic", "Topic?", "--queue", "1"), ("--since", "-100w"),
        ("--queue-offsets", "5:30"), ("--phy-offsets", "100000:900000"),
    ), ("clean-5.3.3", "killed-v2-ipv6-5.3.3"), quick=5),
    (("--format", "csv", *EVERYTHING), "clean-5.3.3"), (("--format", "parquet", *EVERYTHING), "killed-v2-ipv6-5.3.3"),
])
def test_compiled_lines_and_tables_are_those_of_messages(arguments: tuple[str, ...], name: str, tmp_path: Path) -> None:
    kind = arguments[1] if "--format" in arguments else "ndjson"
    out = tmp_path / f"out.{kind}"
    assert mqtool("export", unpacked(name), *arguments, "-o", out).code == 0
    assert content_of(out) == by_message(tmp_path / f"reference.{kind}", unpacked(name), *arguments)


BODIES = (
    b"", b"a", b"\x00\x01\x1f\x7f", b'"quoted" \\ and /', b"tab\tnewline\nreturn\rform\fback\b", b"\xff\xfe\xfd",
    "täglich 漢字かな交じり文 🙂".encode() * 9, b"x" * 63 + b"\xc3", b"x" * 62 + "é".encode(), b"\xed\xa0\x80",
    b"\xf4\x90\x80\x80", b"\xe0\x80\xaf", b"\xc0\xaf", b"ab\xf0\x9f\x98", b"x" * 200 + b"\xff", bytes(range(256)),
    b"x" * (5 << 20), b"\x07" * (3 << 20),
)
PROPERTIES: tuple[bytes | dict[str, str], ...] = (
    b"", {"KEYS": "a b", "TAGS": "t"}, {"KEYS": 'with "quotes" and \\'}, {"UNIQ_KEY": "u", "n": "tab\there"},
    {"kéy": "vàlue"}, b"A\x01one\x02A\x01two\x02", b"A\x01one\x02\x02B\x01\x02\x01C\x02D\x01d",
    b"A\x01x\x01y\x02B\x01z",
    {f"name{number}": "v" for number in range(90)}, b"A\x01\xff\xfe\x02", {"TAGSX": "no", "XTAGS": "no"},
)


def test_lines_of_unusual_messages_are_those_of_the_encoder(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path / "store", mapped_file_size=64 << 20)
    for body in BODIES:
        writer.put("Bodies", body, {"UNIQ_KEY": "u1"})
    for properties in PROPERTIES:
        for flags in (0, sysflag.TRANSACTION_COMMIT, sysflag.TRANSACTION_PREPARED, sysflag.COMPRESSED):
            writer.put("Properties", b"body", properties, sys_flag=flags)
    writer.put("%RETRY%Group", b"again", {"RETRY_TOPIC": "Real"}, reconsume_times=3, flag=-5)
    writer.put("T" * 200, b"long topic", queue_id=7, queue_offset=(1 << 62) + 5)
    writer.close()
    out = tmp_path / "out.ndjson"
    lines = exported(out, tmp_path / "store")
    assert out.read_bytes() == by_message(tmp_path / "reference.ndjson", tmp_path / "store")
    assert [body_of(line) for line in lines if line["topic"] == "Bodies"] == list(BODIES)
    table = tmp_path / "out.parquet"
    assert mqtool("export", tmp_path / "store", "-o", table, "--format", "parquet").code == 0
    rows = without_places(pyarrow.parquet.read_table(table).to_pylist())
    assert [{**row, "properties": json.loads(row["properties"]), "doubtful": row["doubtful"].split()}
            for row in rows] == lines


@pytest.mark.parametrize(("kind", "part", "messages"), [
    ("dledger-5.3.3", "dledger-n0", 0), ("mixed-5.3.3", "dledger-n0", 420), ("tiered-5.5.0", "tieredstore", 440),
])
def test_messages_in_a_part_that_is_not_read_are_told(kind: str, part: str, messages: int, tmp_path: Path) -> None:
    root = unpacked(f"kinds/clean-{kind}")
    result = mqtool("export", root, "-o", tmp_path / "out.ndjson", "--json")
    assert (result.code, result.document["complete"], result.document["messages"]) == (8, False, messages)
    assert any(part in note for note in result.document["notes"])
    sent = mqtool("send", root, "--endpoints", "127.0.0.1:1", "--dry-run", "--json")
    assert (sent.code, sent.document["complete"]) == (8, False)


@few("kind", ["ndjson", "parquet"], quick=(1,))
def test_a_stopped_export_says_how_it_goes_on_and_leaves_nothing_that_cannot(kind: str, tmp_path: Path) -> None:
    out, whole = tmp_path / "out", tmp_path / "whole"
    synth_store(tmp_path / "store", messages=5_000, mapped_file_size=32 << 20)
    command = [sys.executable, "-m", "mqtool", "export", str(tmp_path / "store"), "-o", str(out), "--format", kind,
               "--limit", "50000"]
    # tests that run in the background may ignore SIGINT, and so would what they start
    run = subprocess.Popen([*command, "--rate-limit", "1M"], stderr=subprocess.PIPE, text=True,
                           preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    while run.poll() is None and not list(tmp_path.glob("out*")):
        time.sleep(0.01)
    run.send_signal(signal.SIGINT)
    _, said = run.communicate()
    assert run.returncode == 32
    assert not out.exists()
    if kind == "parquet":
        assert not list(tmp_path.glob("out*"))
        return
    assert "--resume" in said
    assert mqtool(*command[3:], "--resume").code == 0
    assert mqtool("export", tmp_path / "store", "-o", whole).code == 0
    assert out.read_bytes() == whole.read_bytes()


@pytest.mark.parametrize(("name", "more", "format"), [
    ("x.csv", (), "csv"), ("x.parquet", (), "parquet"), ("x.ndjson", (), "ndjson"), ("x", (), "ndjson"),
    ("x.csv", ("--format", "ndjson"), "ndjson"),
])
def test_the_name_of_the_output_says_the_format_where_no_option_does(
    name: str, more: tuple[str, ...], format: str, tmp_path: Path
) -> None:
    done = mqtool("export", unpacked("clean-plain-4.9.7"), "-o", tmp_path / name, *more, "--limit", 3, "--json")
    assert (done.code, done.document["format"]) == (0, format)
    first = (tmp_path / name).read_bytes()[:4]
    assert (first == b"PAR1") == (format == "parquet") and (first[:1] == b"{") == (format == "ndjson")


# --- `mqtool export --format store`: a store of its own that delivers what was exported at the places that it had.


Place = tuple[str, int, int]


def exported_store(root: Path, out: Path, *arguments: object) -> dict[str, Any]:
    """The document of an export to a store, which verifies clean."""
    with assert_unchanged(root):
        result = mqtool("export", root, "-o", out, "--format", "store", "--json", *arguments)
    assert result.code == 0, result.stdout
    assert mqtool("verify", out).code == 0
    return result.document


def intact(root: Path) -> dict[int, bytes]:
    """Every intact record of a log that is no stand-in, by its place."""
    return {
        record.phy_offset: record.content for base, file in plain.log_files(root).items()
        for record in plain.all_records(file, base)
        if not record.stands_in and not (record.sys_flag & 12 == 12 and "MQTOOL_FILLER".startswith(record.topic))
    }


@pytest.mark.parametrize("name", ["clean-5.3.3", "clean-manyfiles-5.3.3"])
def test_a_sound_store_comes_out_as_it_is(name: str, tmp_path: Path) -> None:
    root, out = unpacked(name), tmp_path / "out"
    document = exported_store(root, out)
    assert (document["bridged"], document["complete"]) == (0, True)
    assert plain.delivered(out) == plain.delivered(root)
    assert intact(out) == intact(root)
    for path in (root / "config").iterdir():
        assert (out / "config" / path.name).read_bytes() == path.read_bytes()
    assert not (out / ".mqtool").exists()


@few("recipe", [
    "page-random", "log-middle-missing", "crash-everything-derived", "config-cut-bak-missing",
], quick=(0, 2))
def test_what_is_intact_of_a_damaged_store_keeps_its_places(
    recipe: str, store: Callable[[str], Path], tmp_path: Path,
) -> None:
    root, out = store("clean-manyfiles-5.3.3"), tmp_path / "out"
    before = plain.delivered(root)
    damage(recipe, root, 3)
    result = mqtool("export", root, "-o", out, "--format", "store", "--json")
    assert result.code == 0
    assert mqtool("verify", out).code in (0, 2)
    left = intact(root)
    assert intact(out) == left
    after = plain.delivered(out)
    due = {place: content for place, content in before.items() if content in left.values()}
    assert {place: after.get(place) for place in due} == due
    # a broker that makes its queues anew comes to the same places
    shutil.rmtree(out / "consumequeue")
    (out / "abort").touch()
    document = mqtool("predict", out, "--broker", "5.3.3", "--json").document
    assert (document["starts"], document["lost_messages"]) == (True, 0)
    assert (document["unreachable_messages"], document["misaligned_units"]) == (0, 0)


@few("filters", [
    ("--topic", "Topic?"), ("--topic", "TopicA", "--queue", 1), ("--queue-offsets", "5:30"), ("--limit", 100),
], quick=(1, 3))
def test_a_part_of_a_store_keeps_its_places(filters: tuple[object, ...], tmp_path: Path) -> None:
    root, out = unpacked("clean-5.3.3"), tmp_path / "out"
    document = exported_store(root, out, *filters)
    lines = mqtool("export", root, "-o", tmp_path / "lines", "--include", "system", "--json", *filters).document
    extra = {"RMQ_SYS_TRANS_OP_HALF_TOPIC"} if "--topic" in filters else set()
    assert {topic: n for topic, n in document["topics"].items() if topic not in extra} == {
        topic: n for topic, n in lines["topics"].items() if topic not in extra}
    kept, source = intact(out), intact(root)
    assert len(kept) == document["messages"]
    assert kept.items() <= source.items()
    before, after = plain.delivered(root), plain.delivered(out)
    due = {place: content for place, content in before.items() if content in kept.values()}
    for place, content in due.items():
        if not place[0].startswith("%LMQ%"):
            assert after[place] == content
    # other places have a neighbour of their queue once more, but for half messages, which brokers ask about by place
    ends: dict[tuple[str, int], int] = {}
    for topic, queue, offset in due:
        ends[topic, queue] = max(ends.get((topic, queue), 0), offset)
    for (topic, queue, offset), content in after.items():
        assert content in kept.values() or topic == "RMQ_SYS_TRANS_HALF_TOPIC"
        assert offset <= ends[topic, queue]


def test_log_files_alone_make_a_store(tmp_path: Path) -> None:
    root, out = unpacked("clean-manyfiles-5.3.3"), tmp_path / "out"
    result = mqtool("export", root / "commitlog", "-o", out, "--format", "store", "--json")
    assert result.code == 0
    assert plain.delivered(out) == plain.delivered(root)
    assert mqtool("verify", out).code == 2  # nobody knows what groups consumed
    second = sorted((root / "commitlog").iterdir())[1]
    part = tmp_path / "part"
    assert mqtool("export", second, "-o", part, "--format", "store").code == 0
    assert [path.name for path in (part / "commitlog").iterdir()] == [second.name]
    assert plain.delivered(part).items() <= plain.delivered(root).items()


def test_the_length_of_queue_files_that_nothing_tells_is_an_assumption_that_is_said(tmp_path: Path) -> None:
    root = real_store("clean-5.3.3", tmp_path)
    shutil.rmtree(root / "consumequeue")
    guess = mqtool("export", root, "-o", tmp_path / "guess", "--format", "store", "--json")
    assert guess.document["assumed_settings"] == {"mappedFileSizeConsumeQueue": 6000000}
    assert any("mappedFileSizeConsumeQueue=6000000" in line for line in guess.document["assumptions"])
    assert any("mappedFileSizeConsumeQueue=6000000" in line for line in guess.document["notes"])
    told = mqtool("export", root, "-o", tmp_path / "told", "--format", "store", "--json", "--set",
                  "mappedFileSizeConsumeQueue=2000")
    assert (told.document["assumed_settings"], told.document["assumptions"]) == ({}, [])
    assert {path.stat().st_size for path in (tmp_path / "told" / "consumequeue").glob("*/*/*")} == {2000}


def test_no_message_makes_no_store_and_an_existing_folder_is_left_alone(tmp_path: Path) -> None:
    root = unpacked("clean-5.3.3")
    for filters in (("--key", "nothing"), ("--topic", "Nothing")):
        assert mqtool("export", root, "-o", tmp_path / "out", "--format", "store", *filters).code == 8
    assert list(tmp_path.iterdir()) == []
    elsewhere = unpacked("kinds/clean-dledger-5.3.3")
    none = mqtool("export", elsewhere, "-o", tmp_path / "out", "--format", "store", "--set", "brokerName=x", "--json")
    assert [step["command"] for step in none.document["next"]] == [f"mqtool verify {elsewhere} --set brokerName=x"]
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    assert mqtool("export", root, "-o", tmp_path / "out", "--format", "store").code == 8
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine"]
    assert mqtool("export", root, "-o", root / "out", "--format", "store").code == 16


# --- A terminal obeys what it is sent.


@few(("form", "code"), [("csv", 16), ("raw", 16), ("ndjson", 0), ("csv --force", 0)], quick=(1, 2, 3))
def test_forms_with_control_characters_go_to_a_terminal_only_by_force(form: str, code: int) -> None:
    main, terminal = pty.openpty()
    line = ["export", str(unpacked("clean-5.3.3")), "-o", "-", "--limit", "3", "--format", *form.split()]
    done = subprocess.run([sys.executable, "-m", "mqtool", *line], stdout=terminal, stderr=subprocess.PIPE, check=False)
    os.close(terminal)
    os.close(main)
    assert done.returncode == code
    assert (b"--force" in done.stderr) == (code != 0)


# --- Where each message was read, and which of several copies it is.


def test_each_message_says_where_it_was_read(tmp_path: Path) -> None:
    for name, form in (("out.ndjson", "ndjson"), ("out.csv", "csv")):
        assert mqtool("export", unpacked(STORE), "-o", tmp_path / name, *EVERYTHING).code == 0, form
    found = [json.loads(line) for line in (tmp_path / "out.ndjson").read_text("utf-8").splitlines()]
    rows = pyarrow.csv.read_csv(tmp_path / "out.csv", parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True))
    assert [(each["place"], each["copy"]) for each in found] == [
        (row["place"], row["copy"]) for row in rows.select(["place", "copy"]).to_pylist()]
    records = plain.records_by_place(unpacked(STORE))
    for each in found:
        file, _, position = each["place"].rpartition(":")
        content = Path(file).read_bytes()[int(position):int(position) + each["size"]]
        assert content == records[each["phy_offset"]].content and each["copy"] == 0


@few("form", ["ndjson", "parquet"], quick=(1,))
def test_copies_of_a_message_count_once(form: str, tmp_path: Path) -> None:
    """An image with three copies of a log, and the log itself."""
    files = [path.read_bytes() for path in sorted((unpacked(SMALL) / "commitlog").iterdir())]
    image = tmp_path / "disk.img"
    image.write_bytes(b"".join(bytes(100) + content for content in files * 3))
    once, all_copies = tmp_path / f"once.{form}", tmp_path / f"all.{form}"
    for target, kinds in ((once, "system"), (all_copies, "system,copies")):
        assert mqtool("export", image, unpacked(SMALL), "-o", target, "--include", kinds).code == 0

    def read(path: Path) -> list[dict[str, Any]]:
        if form == "parquet":
            return pyarrow.parquet.read_table(path).to_pylist()
        return [json.loads(line) for line in path.read_text("utf-8").splitlines()]

    due = sorted(record.phy_offset for record in plain.records(unpacked(SMALL)))
    found = read(all_copies)
    assert sorted(each["phy_offset"] for each in read(once)) == due
    assert sorted(each["phy_offset"] for each in found) == sorted(due * 4)
    assert {number: sum(each["copy"] == number for each in found) for number in range(4)} == dict.fromkeys(
        range(4), len(due))
    assert len({each["place"] for each in found}) == len(found)
    content = image.read_bytes()
    for each in found:
        file, _, position = each["place"].rpartition(":")
        if Path(file) == image:
            assert int.from_bytes(content[int(position) + 28:int(position) + 36], "big") == each["phy_offset"]


def test_an_export_beside_damage_is_complete_and_does_not_call_the_store_clean(tmp_path: Path) -> None:
    root, _ = struck_store("clean-plain-4.9.7", tmp_path, "page-random")
    done = mqtool("export", root, "-o", tmp_path / "out.ndjson")
    assert done.code == 0 and "(exit 0: complete)" in done.stdout

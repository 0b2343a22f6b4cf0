"""Stores on an S3-compatible server of this machine, and places that cannot be reached."""

from __future__ import annotations

import json
import os
import random
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fixtures.damage import damage
from fixtures.synth import synth_store
from formats.consumequeue import CQ_UNIT
from recover.change import content
from recover.cluster.engine import SparkEngine
from recover.log.scan import LocalEngine
from recover.repair import rebuild
from tests.cli.runner import mqtool
from tests.cluster.cluster import free_port
from tests.cluster.twice import SPARK, from_now_on, needs_spark, no_java, plain
from tests.support.sampling import few
from tests.support.stores import real_store

pytestmark = [pytest.mark.slow, pytest.mark.spark]


def uploaded(root: Path, endpoint: str, bucket: str) -> str:
    """The place of a copy of a store on the server."""
    from pyarrow.fs import LocalFileSystem, S3FileSystem, copy_files

    files = S3FileSystem(endpoint_override=endpoint, scheme="http", region="us-east-1", allow_bucket_creation=True)
    files.create_dir(bucket)
    copy_files(str(root), f"{bucket}/deep/store", source_filesystem=LocalFileSystem(), destination_filesystem=files)
    return f"s3://{bucket}/deep/store?endpoint_override={endpoint}&scheme=http&region=us-east-1"


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    return _broken("killed-lmq-4.9.7", tmp_path)


def _broken(name: str, folder: Path) -> Path:
    root = real_store(name, folder)
    for recipe in ("page-random", "queue-behind", "checkpoint-zero"):
        damage(recipe, root, 5)
    # S3 keeps no empty folders and no times of ours
    for folder, folders, files in os.walk(root, topdown=False):
        if not folders and not files:
            os.rmdir(folder)
    return root


def _said(document: dict[str, Any], place: str) -> Any:
    """A document that does not name its store, nor what to do with it."""
    document.pop("source", None)
    for finding in document.get("findings", ()):
        finding.pop("remedy")
    return plain(json.loads(json.dumps(document).replace(place, "STORE")), Path("/nowhere"))


def files_at(endpoint: str) -> Any:
    from pyarrow.fs import S3FileSystem

    return S3FileSystem(endpoint_override=endpoint, scheme="http", region="us-east-1")


@pytest.mark.parametrize("spark", [False, pytest.param(True, marks=needs_spark)])
def test_files_built_from_a_log_on_s3_that_changed_meanwhile_are_removed(
    endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: bool
) -> None:
    root = real_store("clean-manyfiles-5.3.3", tmp_path)
    place, write = uploaded(root, endpoint, f"meanwhile-{spark}".lower()), rebuild._write
    name = f"meanwhile-{spark}/deep/store/commitlog/{min((root / 'commitlog').iterdir()).name}".lower()

    def late(*arguments: Any) -> Any:
        with files_at(endpoint).open_output_stream(name) as file:
            file.write(b"another log")
        return write(*arguments)

    monkeypatch.setattr(rebuild, "_write", late)
    done = mqtool("rebuild", place, "--output", tmp_path / "out", "--json", *(SPARK if spark else ()))
    assert done.code & 8 and not (tmp_path / "out").exists()
    said = done.document["error"]["message"]
    assert "the log changed while it was read" in said or "became shorter while it was read" in said


@pytest.mark.parametrize("spark", [False, pytest.param(True, marks=needs_spark)])
def test_an_object_that_is_gone_is_not_said_to_be_readable_here(
    endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: bool
) -> None:
    place = uploaded(real_store("clean-manyfiles-5.3.3", tmp_path), endpoint, f"gone-{spark}".lower())
    engine: Any = SparkEngine if spark else LocalEngine
    scan, name = engine.scan_log, f"gone-{spark}/deep/store/commitlog/00000000000000065536".lower()

    def late(*arguments: Any, **options: Any) -> Any:
        files_at(endpoint).delete_file(name)
        return scan(*arguments, **options)

    monkeypatch.setattr(engine, "scan_log", late)
    done = mqtool("verify", place, "--json", *(SPARK if spark else ()))
    assert done.code == 8, done.stdout
    said = done.document["error"]["message"]
    assert "00000000000000065536" in said and "which this machine can" not in said and "%2F" not in said


def test_a_store_on_s3_is_verified_as_one_on_a_disk(endpoint: str, broken: Path) -> None:
    place = uploaded(broken, endpoint, "one")
    local, there = mqtool("verify", broken, "--json"), mqtool("verify", place, "--json")
    remedies = {finding["remedy"] for finding in there.document["findings"]}
    assert there.code == local.code != 0, there.stderr
    assert there.document["store"] == place
    expected = _said(local.document, str(broken))
    assert _said(there.document, place) == expected
    # nothing is changed there, so what to do is said of a copy
    copy = f"aws s3 sync s3://one/deep/store DIR --endpoint-url http://{endpoint}"
    assert there.document["next"][0]["command"] == f"{copy} && mqtool recover DIR --dry-run"
    assert any(copy in text and "mqtool recover DIR" in text for text in remedies)
    assert not any("mqtool recover s3" in text for text in remedies)
    if no_java():
        pytest.skip(f"NOT RUN, S3 with the Spark engine: {no_java()}")
    spark = mqtool("verify", place, "--json", *SPARK)
    assert spark.code == local.code, spark.stderr
    assert _said(spark.document, place) == expected


@pytest.fixture(scope="module")
def two(endpoint: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A store with damage, and its place on the server: without LMQ, whose records take a request each."""
    root = _broken("killed-plain-4.5.1", tmp_path_factory.mktemp("two"))
    return root, uploaded(root, endpoint, "two")


@few("line", [
    ("verify", "--only", "commitlog,index"), ("predict", "--broker", "4.9.7"), ("groups",),
    ("query", "--phy-offset", "0", "--body"), ("query", "--topic", "Orders", "--limit", "5"),
], ids=" ".join, quick=(1, 3))
def test_commands_that_read_answer_on_s3_as_on_a_disk(two: tuple[Path, str], line: tuple[str, ...]) -> None:
    here, there = (mqtool(line[0], root, *line[1:], "--json") for root in two)
    assert there.code == here.code, there.stderr
    assert _said(there.document, two[1]) == _said(here.document, str(two[0]))


def test_records_that_lie_together_come_in_few_requests(server: tuple[str, Path], tmp_path: Path) -> None:
    """Each record of an LMQ store is read for the queues that it names."""
    endpoint, log = server
    root = real_store("killed-lmq-4.9.7", tmp_path)
    place = uploaded(root, endpoint, "lmq")
    before = log.read_text().count("GET /lmq/deep/store/commitlog/")
    here, there = (mqtool("groups", store, "--json") for store in (root, place))
    assert (there.code, _said(there.document, place)) == (here.code, _said(here.document, str(root)))
    assert log.read_text().count("GET /lmq/deep/store/commitlog/") - before < 60


def _bytes(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("kind", ["ndjson", "store"])
def test_messages_of_a_store_on_s3_come_out(two: tuple[Path, str], kind: str, tmp_path: Path) -> None:
    here, there = (mqtool("export", root, "-o", tmp_path / name, "--format", kind)
                   for root, name in zip(two, ("here", "there"), strict=True))
    assert there.code == here.code == 0, there.stderr
    if kind == "ndjson":
        lines = ((tmp_path / name).read_text("utf-8").splitlines() for name in ("there", "here"))
        for far, near in zip(*(map(json.loads, text) for text in lines), strict=True):
            # each says where it was read
            name, _, at = near.pop("place").removeprefix(str(two[0])).rpartition(":")
            where = far.pop("place")
            assert name in where and where.endswith(f":{at}") and far == near
    else:
        assert _bytes(tmp_path / "there") == _bytes(tmp_path / "here")


def test_queues_and_index_are_rebuilt_from_s3_and_onto_it(two: tuple[Path, str], tmp_path: Path) -> None:
    here, there = (mqtool("rebuild", root, "--output", tmp_path / name)
                   for root, name in zip(two, ("here", "there"), strict=True))
    assert there.code == here.code, there.stderr
    expected = _bytes(tmp_path / "here")
    assert expected and _bytes(tmp_path / "there") == expected
    place = two[1].replace("deep/store", "made/derived")
    assert mqtool("rebuild", two[1], "--output", place).code == here.code
    assert _at(place) == expected
    taken = mqtool("rebuild", two[1], "--output", place)
    assert taken.code == 8 and "not empty" in taken.stderr
    nowhere = mqtool("rebuild", two[1], "--output", place.replace("s3://two", "s3://none"))
    assert nowhere.code == 8 and "cannot be written" in nowhere.stderr


@pytest.mark.parametrize("workers", [
    pytest.param("local[2]", marks=needs_spark), pytest.param("a cluster", marks=[*needs_spark, pytest.mark.deep])])
def test_executors_build_from_s3_onto_it_and_no_row_comes_to_the_driver(
    endpoint: str, tmp_path: Path, workers: str, request: pytest.FixtureRequest
) -> None:
    """Rows would be more than 20 bytes a message; a task says some 2 kB of itself."""
    messages = 24_000
    spark = SPARK[:-2] if workers == "local[2]" else request.getfixturevalue("running").line()
    root = synth_store(tmp_path / "s", messages=messages, topics=2, queues=2, queue_file_size=6_000 * CQ_UNIT.size,
                       mapped_file_size=8 << 20, index_slots=5_000, index_entries=50_000).root
    assert mqtool("rebuild", root, "--output", tmp_path / "here").code == 0
    place = uploaded(root, endpoint, workers.replace("[2]", "").replace(" ", "-"))
    ran = from_now_on()
    target = place.replace("deep/store", "made/derived")
    done = mqtool("rebuild", place, "--output", target, "--json", *spark)
    assert done.code == 0, done.stderr
    if workers == "local[2]":
        assert 0 < sum(stage.resultSize() for stage in ran()) < 4 * messages
    expected = _bytes(tmp_path / "here")
    assert sorted(done.document["files"]) == sorted(expected)
    assert _at(target) == expected


def _at(place: str) -> dict[str, bytes]:
    """Name -> content of everything below a place on the server."""
    from pyarrow.fs import FileSelector, FileSystem

    files, root = FileSystem.from_uri(place)
    return {item.path.removeprefix(f"{root}/"): files.open_input_file(item.path).read()
            for item in files.get_file_info(FileSelector(root, recursive=True)) if item.is_file}


@pytest.mark.skipif(bool(no_java()), reason=f"NOT RUN, S3 with the Spark engine: {no_java()}")
def test_a_worker_that_cannot_write_to_s3_leaves_nothing_there(
    endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = real_store("clean-manyfiles-5.3.3", tmp_path)
    place = uploaded(root, endpoint, "half")
    target, sent = place.replace("deep/store", "made"), []

    def failing(pairs: Any) -> None:
        sent.extend(_at(target))
        raise OSError(28, "no room for more")

    monkeypatch.setattr(content, "move_objects", failing)
    done = mqtool("rebuild", place, "--output", target, "--json", *SPARK)
    assert done.code & 8 and "cannot be written" in done.document["error"]["message"]
    assert sent and not _at(target)


def test_a_store_on_s3_is_repaired_as_a_copy_on_a_disk(two: tuple[Path, str], tmp_path: Path) -> None:
    there = mqtool("recover", two[1], "--output", tmp_path / "there", "--yes", "--json")
    here = mqtool("recover", two[0], "--output", tmp_path / "here", "--yes", "--json")
    assert there.code == here.code, there.stderr
    assert there.document["lost_messages"] == here.document["lost_messages"]
    assert there.document["bridged"] == here.document["bridged"]
    made, expected = ({name: content for name, content in _bytes(tmp_path / name).items() if ".mqtool" not in name}
                      for name in ("there", "here"))
    assert made.keys() == expected.keys()
    assert [name for name in made if made[name] != expected[name]] == []
    assert mqtool("verify", two[1]).code == mqtool("verify", two[0]).code
    again = mqtool("recover", two[1], "--output", tmp_path / "there", "--yes")
    assert again.code == 8 and "not an empty directory" in again.stderr
    assert mqtool("recover", two[1], "--output", tmp_path / "new", "--dry-run").code == 16
    assert not (tmp_path / "new").exists()


def test_a_name_that_leads_out_of_the_copy_is_refused(endpoint: str, broken: Path, tmp_path: Path) -> None:
    import boto3

    place = uploaded(broken, endpoint, "evil")
    boto3.client("s3", endpoint_url=f"http://{endpoint}").put_object(
        Bucket="evil", Key="deep/store/config/../../../out", Body=b"x")
    result = mqtool("recover", place, "--output", tmp_path / "new", "--yes")
    assert result.code == 8 and "would lead out of the copy" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == [broken.name]


def test_inspect_lists_on_s3_what_it_lists_on_a_disk(two: tuple[Path, str]) -> None:
    here, there = (mqtool("inspect", root, "--json").document for root in two)
    for name in sorted(here.keys() - {"tool", "store", "parts", "next", "findings", "time"}):
        assert there[name] == here[name]
    assert [(part["name"], part["files"], part["bytes"]) for part in there["parts"]] == [
        (part["name"], part["files"], part["bytes"]) for part in here["parts"]
    ]


def test_places_that_are_not_there_are_told_from_servers_that_are_not(endpoint: str) -> None:
    options = f"?endpoint_override={endpoint}&scheme=http&region=us-east-1"
    missing = mqtool("verify", f"s3://nobody/store{options}", "--json")
    assert missing.code == 16
    assert missing.document["error"]["message"] == "s3://nobody/store does not exist"
    nobody = options.replace(endpoint, f"127.0.0.1:{free_port()}")
    unreached = mqtool("verify", f"s3://one/store{nobody}", "--json")
    assert unreached.code == 8
    assert "AWS_REGION" in unreached.document["error"]["remedy"]
    hadoop = mqtool("verify", "hdfs://127.0.0.1:1/store", "--json")
    assert hadoop.code == 8
    assert "libhdfs" in hadoop.document["error"]["remedy"]


class Counter:
    """A door to the server on a port of its own, 30 ms away: bytes that came out of it, the ranges that were asked for,
    and how many requests were on their way at one time."""

    def __init__(self, endpoint: str) -> None:
        host, port = endpoint.split(":")
        self._server = host, int(port)
        self._door = socket.create_server((host, 0))
        self.endpoint = f"{host}:{self._door.getsockname()[1]}"
        self.came = self.under_way = self.most_under_way = 0
        self.requests = b""
        self._lock = threading.Lock()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._door.accept()
            except OSError:
                return
            server = socket.create_connection(self._server)
            for source, target in ((client, server), (server, client)):
                threading.Thread(target=self._pass_on, args=(source, target), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while content := source.recv(1 << 16):
                if target.getpeername() == self._server:
                    self.requests += content
                    self._wait()
                else:
                    self.came += len(content)
                target.sendall(content)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _wait(self) -> None:
        with self._lock:
            self.under_way += 1
            self.most_under_way = max(self.most_under_way, self.under_way)
        time.sleep(0.03)
        with self._lock:
            self.under_way -= 1

    def ranges(self) -> list[tuple[str, int, int]]:
        """(key, first byte, stop) of each GET of a part of an object."""
        parts = []
        for head in re.findall(rb"GET .*?\r\n\r\n", self.requests, re.DOTALL):
            hit = re.search(rb"[Rr]ange: bytes=(\d+)-(\d+)", head)
            if hit is not None:
                parts.append((head.split()[1].decode(), int(hit[1]), int(hit[2]) + 1))
        return parts

    def close(self) -> None:
        """No more comes through."""
        self._door.close()


def _large(folder: Path, messages: int, file_size: int) -> Path:
    body = partial(random.Random.randbytes, n=65_000)
    return synth_store(folder / "s", messages=messages, body=body, mapped_file_size=file_size).root


@pytest.fixture
def door(endpoint: str) -> Iterator[Counter]:
    counter = Counter(endpoint)
    yield counter
    counter.close()


@pytest.fixture(scope="module")
def eighty(endpoint: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The place of two log files of 40 MB, filled with messages."""
    root = _large(tmp_path_factory.mktemp("eighty"), messages=1000, file_size=40 << 20)
    assert sum(path.stat().st_size for path in (root / "commitlog").iterdir()) == 80 << 20
    return uploaded(root, endpoint, "eighty")


@pytest.mark.parametrize("engine", [
    (), pytest.param(SPARK[:-2], marks=pytest.mark.skipif(bool(no_java()), reason=f"NOT RUN, Spark: {no_java()}")),
], ids=["threads", "Spark"])
def test_verify_of_the_log_alone_moves_the_log_once_and_nothing_else(
    engine: tuple[str, ...], endpoint: str, door: Counter, eighty: str
) -> None:
    place, size = eighty.replace(endpoint, door.endpoint), 80 << 20
    found = mqtool("verify", place, "--only", "commitlog", "--json", *engine)
    assert found.code == 0, found.stderr
    assert found.document["commitlog"]["messages"] == 1000
    assert size <= door.came <= 1.05 * size
    ranges = door.ranges()
    assert not [key for key, _, _ in ranges if "/consumequeue/" in key or "/index/" in key]
    # heads of files beside: the log comes in a few large pieces
    large = [stop - start for _, start, stop in ranges if stop - start > 1 << 16]
    assert min(large) >= 8 << 20 and sum(large) >= 0.99 * size
    assert door.most_under_way >= 3


def test_a_message_is_fetched_from_s3_without_its_file(endpoint: str, door: Counter, tmp_path: Path) -> None:
    root = _large(tmp_path, messages=60, file_size=4 << 20)
    place = uploaded(root, endpoint, "four").replace(endpoint, door.endpoint)
    line = ("--phy-offset", 0, "--body", "--json")
    assert mqtool("query", place, *line).document["messages"] == mqtool("query", root, *line).document["messages"]
    assert door.came < 1 << 20


@pytest.mark.skipif(bool(no_java()), reason=f"NOT RUN, SQL on S3: {no_java()}")
@few("kind", ["commitlog", "consumequeue", "index", "findings"], quick=(0, 3))
def test_a_store_on_s3_is_asked_in_sql_as_one_on_a_disk(spark: Any, two: tuple[Path, str], kind: str) -> None:
    here, there = ([row.asDict() for row in spark.read.format(f"rocketmq-{kind}").option("splitSize", 1000003)
                    .load(str(place)).collect()] for place in two)
    assert [row.pop("store") for row in here + there] == [str(two[0])] * len(here) + [two[1]] * len(there)
    for row in here + there:
        row.pop("remedy", None)
    assert sorted(there, key=str) == sorted(here, key=str) != []

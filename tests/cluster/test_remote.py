"""Stores on an S3-compatible server of this machine, and places that cannot be reached."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fixtures.damage import damage
from recover.store import remote
from tests.cli.runner import mqtool
from tests.cluster.cluster import free_port
from tests.cluster.twice import SPARK, no_java, plain
from tests.support.stores import real_store

pytestmark = [pytest.mark.slow, pytest.mark.spark]
_SECONDS = 60


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """host:port of a server that keeps its buckets in memory; its credentials are in the environment."""
    port = free_port()
    log = (tmp_path_factory.mktemp("s3") / "log").open("wb")
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], stdout=log, stderr=log
    )
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("AWS_ACCESS_KEY_ID", "test"), ("AWS_SECRET_ACCESS_KEY", "test"),
                            ("AWS_REGION", "us-east-1"), ("AWS_EC2_METADATA_DISABLED", "true")):
            patch.setenv(name, value)
        try:
            _wait_for(f"http://127.0.0.1:{port}/moto-api/data.json", process)
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(20)
            log.close()


def _wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + _SECONDS
    while True:
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except OSError:
            assert process.poll() is None and time.monotonic() < end, "the S3 server did not start"
            time.sleep(0.1)


def uploaded(root: Path, endpoint: str, bucket: str) -> str:
    """The place of a copy of a store on the server."""
    from pyarrow.fs import LocalFileSystem, S3FileSystem, copy_files

    files = S3FileSystem(endpoint_override=endpoint, scheme="http", region="us-east-1", allow_bucket_creation=True)
    files.create_dir(bucket)
    copy_files(str(root), f"{bucket}/deep/store", source_filesystem=LocalFileSystem(), destination_filesystem=files)
    return f"s3://{bucket}/deep/store?endpoint_override={endpoint}&scheme=http&region=us-east-1"


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    root = real_store("killed-lmq-4.9.7", tmp_path)
    for recipe in ("page-random", "queue-behind", "checkpoint-zero"):
        damage(recipe, root, 5)
    # S3 keeps no empty folders and no times of ours
    for folder, folders, files in os.walk(root, topdown=False):
        if not folders and not files:
            os.rmdir(folder)
    return root


def _said(document: dict[str, Any], place: str) -> Any:
    """A document that does not name its store, nor what to do with it."""
    for finding in document.get("findings", ()):
        finding.pop("remedy")
    return plain(json.loads(json.dumps(document).replace(place, "STORE")), Path("/nowhere"))


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
    assert f"next: {copy} && mqtool recover DIR --dry-run" in mqtool("verify", place).stdout
    assert any(copy in text and "mqtool recover DIR" in text for text in remedies)
    assert not any("mqtool recover s3" in text for text in remedies)
    # the log stays where it is: what stands for it here has not a byte
    stands = [path for path in remote.local_root(place).rglob("commitlog/*") if path.is_file()]
    assert stands and all(path.stat().st_blocks == 0 for path in stands)
    if no_java():
        pytest.skip(f"NOT RUN, S3 with the Spark engine: {no_java()}")
    spark = mqtool("verify", place, "--json", *SPARK)
    assert spark.code == local.code, spark.stderr
    assert _said(spark.document, place) == expected


def test_messages_on_s3_are_found_with_their_bodies(endpoint: str, broken: Path) -> None:
    place = uploaded(broken, endpoint, "two")
    line = ("--phy-offset", 0, "--body", "--json")
    here, there = (mqtool("query", root, *line).document["messages"] for root in (broken, place))
    assert there == here != []


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

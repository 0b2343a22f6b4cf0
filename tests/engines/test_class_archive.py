"""Java's own file of the classes that Spark loads: made once, and used only where nobody else could have put it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pyspark
import pytest

from recover.spark.class_archive import ClassArchive, archive_for
from recover.spark.java import Java, find_java
from recover.spark.session import session_for, stop_session
from recover.spark.settings import SparkSettings, spark_settings
from tests.engines.twice import no_java


@pytest.fixture
def java(tmp_path: Path) -> Java:
    """A Java with an archive of its own classes, without which it can make no other."""
    program, base = tmp_path / "jdk/bin/java", tmp_path / "jdk/lib/server/classes.jsa"
    for path in (program, base):
        path.parent.mkdir(parents=True)
        path.write_bytes(b"x")
    return Java(program, 17)


@pytest.fixture
def spark(tmp_path: Path) -> Path:
    """Spark's folder."""
    jar = tmp_path / "spark/jars/spark-core_2.13-4.3.0.jar"
    jar.parent.mkdir(parents=True)
    jar.write_bytes(b"jar")
    return tmp_path / "spark"


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where archives are kept."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "mqtool"


def _made(java: Java, spark: Path) -> ClassArchive:
    archive = archive_for(java, spark, "", make=True)
    assert archive is not None and archive.made is not None
    archive.made.write_bytes(b"classes")
    archive.end(whole=True)
    return archive


def test_there_is_none_until_one_was_made(java: Java, spark: Path) -> None:
    assert archive_for(java, spark, "", make=False) is None
    made = _made(java, spark)
    assert made.option == f"-XX:ArchiveClassesAtExit={made.made}"
    found = archive_for(java, spark, "", make=True)
    assert found == ClassArchive(made.path) and found.option == f"-XX:SharedArchiveFile={made.path}"
    assert os.listdir(made.path.parent) == [made.path.name]


def test_what_java_did_not_finish_is_removed(java: Java, spark: Path, kept: Path) -> None:
    archive = archive_for(java, spark, "", make=True)
    assert archive is not None and archive.made is not None
    archive.made.write_bytes(b"clas")
    archive.end(whole=False)
    archive.end(whole=True)
    assert os.listdir(kept) == []


def test_what_was_made_for_a_command_that_was_killed_is_removed(java: Java, spark: Path, kept: Path) -> None:
    archive = archive_for(java, spark, "", make=True)
    assert archive is not None and archive.made is not None
    with subprocess.Popen(["true"]) as ended:
        pass
    abandoned, others = archive.path.with_suffix(f".{ended.pid}"), archive.path.with_suffix(".1")
    for path in (archive.made, abandoned, others):
        path.write_bytes(b"classes")
    archive_for(java, spark, "", make=True)
    assert sorted(kept.iterdir()) == sorted([archive.made, others])


def test_another_java_or_spark_has_one_of_its_own(java: Java, spark: Path) -> None:
    _made(java, spark)
    (spark / "jars/spark-core_2.13-4.3.0.jar").write_bytes(b"other jar")
    assert archive_for(java, spark, "", make=False) is None


def test_a_java_without_an_archive_of_its_own_is_asked_for_none(java: Java, spark: Path) -> None:
    (java.program.parents[1] / "lib/server/classes.jsa").unlink()
    assert archive_for(java, spark, "", make=True) is None


@pytest.mark.parametrize("option", ["-XX:SharedArchiveFile=/x", "-XX:ArchiveClassesAtExit=/x"])
def test_who_names_archives_is_not_interfered_with(java: Java, spark: Path, option: str) -> None:
    _made(java, spark)
    assert archive_for(java, spark, f"-Xss2m {option}", make=True) is None


@pytest.mark.parametrize("mode", [0o664, 0o646])
def test_one_that_others_can_write_is_not_used(java: Java, spark: Path, mode: int) -> None:
    _made(java, spark).path.chmod(mode)
    assert archive_for(java, spark, "", make=False) is None


def test_a_folder_that_others_can_write_is_not_used(java: Java, spark: Path, kept: Path) -> None:
    _made(java, spark)
    kept.chmod(0o777)
    assert archive_for(java, spark, "", make=False) is None
    assert archive_for(java, spark, "", make=True) is None


@pytest.mark.parametrize("name", ["a b", "a:b", 'a"b'])
def test_a_path_that_java_would_misread_is_not_used(
    java: Java, spark: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / name))
    assert archive_for(java, spark, "", make=True) is None


def _one_session(settings: SparkSettings, *, archives: bool = False) -> None:
    # stops the one that a test before this may have left to those behind it, too
    session_for(settings, archives=archives)
    stop_session()


@pytest.mark.deep
@pytest.mark.skipif(bool(no_java()), reason=f"NOT RUN, the Spark engine: {no_java()}")
def test_the_session_behind_one_that_made_it_takes_its_classes_from_it(tmp_path: Path, kept: Path) -> None:
    if archive_for(find_java(), Path(pyspark.__file__).parent, "", make=True) is None:
        pytest.skip("NOT RUN, Java's archive: this Java has none of its own classes")
    settings = spark_settings("local[1]", ["spark.driver.memory=512m"])
    _one_session(settings, archives=True)
    assert [path.suffix for path in kept.iterdir()] == [".jsa"]
    seen = tmp_path / "classes"
    settings = spark_settings("local[1]", [f"spark.driver.extraJavaOptions=-Xlog:class+load:file={seen}"])
    _one_session(settings)
    loaded = [line for line in seen.read_text().splitlines() if " org.apache.spark.SparkContext " in line]
    assert loaded and "shared objects file (top)" in loaded[0]

"""A store out of pieces of one log: `export --format store` of an image, and `recover --from IMAGE --output DIR`."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from mqtool import exits
from tests.cli.runner import Result, mqtool
from tests.support import plain_reader as plain
from tests.support.pairs import other_body
from tests.support.sampling import few
from tests.support.stores import unpacked

MANY, PLAIN = "clean-manyfiles-5.3.3", "clean-plain-4.9.7"


def image_of(name: str, path: Path, copies: int = 1, seed: int = 0, cut: int = 0) -> Path:
    """A disk without a file system: the log's files, several copies of each, shuffled, between other bytes."""
    rng = random.Random(seed)
    files = [*plain.log_files(unpacked(name)).values()] * copies
    rng.shuffle(files)
    path.write_bytes(b"".join(rng.randbytes(512) + content[cut:] + bytes(4096) for content in files))
    return path


def make(command: str, source: Path, target: Path, *options: object) -> Result:
    if command == "export":
        return mqtool("export", source, "-o", target, "--format", "store", *options, "--json")
    return mqtool("recover", "--from", source, "--output", target, "--yes", *options, "--json")


def wrong(root: Path) -> set[str]:
    """What verify finds; offsets of consumers are in no log."""
    return {item["code"] for item in mqtool("verify", root, "--json").document["findings"]
            if item["severity"] != "info"} - {"config-missing"}


@pytest.mark.parametrize("command", ["export", "recover"])
@few(("name", "copies", "options"), [
    (MANY, 1, ()), (MANY, 3, ()), (PLAIN, 2, ())], quick=(1, 2))
def test_image_becomes_the_store_that_it_holds(
    command: str, name: str, copies: int, options: tuple[str, ...], tmp_path: Path
) -> None:
    image, target = image_of(name, tmp_path / "disk.img", copies), tmp_path / "made"
    done = make(command, image, target, *options)
    assert not done.code & (exits.OPERATIONAL | exits.BUG | exits.USAGE), done.stderr
    records = plain.records_by_place(unpacked(name))
    assert plain.records_by_place(target) == records
    assert done.document["messages"] == len(records)
    assert plain.delivered(target) == plain.delivered(unpacked(name))
    if name == MANY:
        assert plain.log_files(target).keys() == plain.log_files(unpacked(name)).keys()
    assert not wrong(target)


def test_what_no_piece_has_is_bridged(tmp_path: Path) -> None:
    image, target = tmp_path / "disk.img", tmp_path / "made"
    (first, one), _, (third, three), *_ = sorted(plain.log_files(unpacked(MANY)).items())
    image.write_bytes(bytes(512) + three + bytes(512) + one)
    done = make("recover", image, target)
    assert done.code & exits.MESSAGES
    kept = {at: record for at, record in plain.records_by_place(unpacked(MANY)).items()
            if at < first + len(one) or third <= at < third + len(three)}
    made = plain.records_by_place(target)
    assert {at: record for at, record in made.items() if not record.stands_in} == kept
    assert not wrong(target)


def test_dry_run_tells_how_much_would_be_put_together(tmp_path: Path) -> None:
    done = mqtool("recover", "--from", image_of(MANY, tmp_path / "disk.img"), "--output", tmp_path / "made",
                  "--dry-run", "--json")
    assert done.code == 0 and done.document["messages"] == len(plain.records_by_place(unpacked(MANY)))
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("command", ["export", "recover"])
def test_pieces_of_two_logs_are_refused(command: str, tmp_path: Path) -> None:
    image = tmp_path / "disk.img"
    one = b"".join(record.content for record in plain.records(unpacked(PLAIN)))
    image.write_bytes(bytes(100) + one + bytes(100) + b"".join(map(other_body, plain.records(unpacked(PLAIN)))))
    done = make(command, image, tmp_path / "made")
    assert done.code == exits.OPERATIONAL and "several logs" in done.stderr
    assert not (tmp_path / "made").exists()


def test_file_size_that_a_record_would_cross_is_asked_for(tmp_path: Path) -> None:
    done = make("recover", image_of(MANY, tmp_path / "disk.img"), tmp_path / "made", "--mapped-file-size", "1000")
    assert done.code == exits.USAGE and "--mapped-file-size" in done.stderr


def test_recover_without_store_and_output_says_what_is_missing(tmp_path: Path) -> None:
    done = mqtool("recover", "--from", image_of(MANY, tmp_path / "disk.img"), "--json")
    assert done.code == exits.USAGE

"""A message kept for later that does not say rightly where it is to go: whole brokers, before and after recover."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fixtures.lab.packed import settings
from fixtures.lab.report import Logged
from fixtures.lab.toolchain import VERSIONS
from fixtures.lab.whole import WholeBroker
from formats.names import offset_to_name
from tests.broker.cases import marked
from tests.broker.gaps import REPLAY, some_records
from tests.broker.judge import mqtool
from tests.broker.progress import await_offset, delivered, end_of, taken_up
from tests.support.brokers import require_lab
from tests.support.stores import real_store

pytestmark = pytest.mark.broker

SCHEDULE = "SCHEDULE_TOPIC_XXXX"
WHEEL = "rmq_sys_wheel_timer"
LEVEL = 3
MODERN = [version for version in VERSIONS if version.startswith("5.")]
_SECONDS = 15.0
_FAILED = ("messageTimeup execute error", "messageTimeUp execute error")


def _struck(folder: Path, store: str, hit: Logged, name: str) -> Path:
    """A copy in which a bit of the first letter of this property's name is turned over."""
    root = real_store(store, folder)
    size = int(str(settings(store)["mappedFileSizeCommitLog"]))
    path = root / "commitlog" / offset_to_name(hit.phy_offset // size * size)
    content = bytearray(path.read_bytes())
    start = hit.phy_offset % size
    content[content.rindex(f"{name}\x01".encode(), start, start + hit.size)] ^= 1
    path.write_bytes(content)
    assert mqtool("verify", root).code & 4
    return root


def _mended(root: Path) -> None:
    assert mqtool("recover", root, "--mend-bits", "--yes").document["plan"]["loss"] == []
    assert mqtool("verify", root).code & 4 == 0


@pytest.mark.parametrize(("version", "name"), marked([(v, n) for v in VERSIONS for n in ("REAL_QID", "REAL_TOPIC")], 1))
def test_a_delay_level_goes_on_once_a_message_says_again_where_it_is_to_go(
    version: str, name: str, tmp_path: Path
) -> None:
    """4.9 stands still at the message, the others drop it."""
    require_lab()
    store = "clean-4.5.1"
    (hit,) = some_records(store, SCHEDULE, 1, LEVEL - 1)
    end = end_of(store, f"{SCHEDULE}/{LEVEL - 1}")
    for is_mended in (False, True):
        root = _struck(tmp_path / str(is_mended), store, hit, name)
        if is_mended:
            _mended(root)
        for path in (root / "config").glob("delayOffset.json*"):
            path.unlink()
        offsets = root / "config" / "delayOffset.json"
        with WholeBroker(version, root, {**settings(store), "flushDelayOffsetInterval": 500}, kill=True) as broker:
            reached = await_offset(lambda path=offsets: delivered(path, LEVEL), end, _SECONDS)
            failed = any(word in broker.log() for word in _FAILED)
        if is_mended:
            assert reached >= end and not failed
        else:
            assert reached == hit.queue_offset if version.startswith("4.9") else reached >= end
            assert failed or version.startswith("4.5")


@pytest.mark.parametrize("version", [version for version in VERSIONS if version.startswith("4.9")])
def test_a_delay_level_is_led_past_a_message_by_hand(version: str, tmp_path: Path) -> None:
    """What `mqtool explain` advises where no bit explains it."""
    require_lab()
    store = "clean-4.5.1"
    (hit,) = some_records(store, SCHEDULE, 1, LEVEL - 1)
    end = end_of(store, f"{SCHEDULE}/{LEVEL - 1}")
    root = _struck(tmp_path, store, hit, "REAL_QID")
    offsets = root / "config" / "delayOffset.json"
    (root / "config" / "delayOffset.json.bak").unlink()
    offsets.write_text(f'{{"offsetTable":{{{LEVEL}:{hit.queue_offset + 1}}}}}')
    with WholeBroker(version, root, {**settings(store), "flushDelayOffsetInterval": 500}, kill=True):
        assert await_offset(lambda: delivered(offsets, LEVEL), end, _SECONDS) >= end


@pytest.mark.parametrize("version", MODERN)
def test_the_timer_goes_on_once_a_message_says_again_when_it_is_due(version: str, tmp_path: Path) -> None:
    """It takes up nothing that came later. One that does not say where to go stops it too, but not every time.

    Where no bit explains it, the timer can be told to pass over it.
    """
    require_lab()
    store = "clean-5.3.3"
    (hit,) = some_records(store, WHEEL, 1)
    end = end_of(store, f"{WHEEL}/0")
    for is_mended, skips in ((False, False), (True, False), (False, True)):
        root = _struck(tmp_path / f"{is_mended}-{skips}", store, hit, "TIMER_OUT_MS")
        if is_mended:
            _mended(root)
        file = root / "config" / "timercheck"
        for path in (root / "timerwheel", file):
            path.unlink()
        shutil.rmtree(root / "timerlog")
        told = {**settings(store), **REPLAY, "timerWheelEnable": True, "timerSkipUnknownError": skips}
        with WholeBroker(version, root, told, kill=True):
            taken = await_offset(lambda path=file: taken_up(path), end, _SECONDS)
        assert taken >= end if is_mended or skips else taken == hit.queue_offset

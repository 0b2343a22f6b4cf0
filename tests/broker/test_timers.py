"""Each timer once: whole brokers on stores whose timer was damaged and made again by recover."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from fixtures.lab import kinds
from fixtures.lab.kinds import step
from fixtures.lab.packed import settings
from fixtures.lab.whole import WholeBroker
from tests.cli.runner import mqtool
from tests.support import plain_reader as plain
from tests.support.stores import copy_store
from tests.support.timer_harm import HARMS

pytestmark = [pytest.mark.broker, pytest.mark.patient]

RELEASES = ("5.3.3", "5.5.0")
SAMPLE = {("timerlog-gone", "5.3.3")}
CASES = [pytest.param(harm, release, marks=pytest.mark.deep if (harm, release) in SAMPLE else ())
         for harm in HARMS for release in RELEASES]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The store with 40 timers as a release writes it now: brokers forget those that are a week old."""

    @cache
    def write(release: str) -> Path:
        (kind,) = (kind for kind in kinds.RECIPES if kind.name == f"clean-timers-{release}")
        return kinds.write(kind, tmp_path_factory.mktemp(release) / "store")

    return write


@pytest.mark.parametrize(("harm", "release"), CASES)
def test_each_timer_is_delivered_exactly_once(
    harm: str, release: str, written: Callable[[str], Path], tmp_path: Path,
) -> None:
    name = f"kinds/clean-timers-{release}"
    root = copy_store(written(release), tmp_path / "store")
    HARMS[harm](root)
    size = settings(name)["mappedFileSizeTimerLog"]
    said = mqtool("recover", root, "--yes", "--set", f"mappedFileSizeTimerLog={size}")
    assert said.code & 0x58 == 0
    with WholeBroker(release, root, settings(name), kill=True) as broker:
        got = broker.act([step("await", "Timed", 40, 150_000), step("sleep", 6_000), step("read", "Timed")])
    keys = Counter(key for rows in got["Timed"].values() for _, _, key, _ in rows)
    wanted = {record.properties["UNIQ_KEY"] for record in plain.records(root)
              if record.topic == "rmq_sys_wheel_timer" and "TIMER_ROLL_TIMES" not in record.properties}
    assert keys == Counter(wanted)

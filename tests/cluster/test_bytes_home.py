"""Of a sound store sums come to the driver, and no row: what Spark itself counts of the results of tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fixtures.synth import synth_store
from formats.consumequeue import CQ_UNIT
from recover.cluster.session import running_session
from tests.cli.runner import mqtool
from tests.cluster.twice import needs_spark

pytestmark = needs_spark

SPARK = ("--engine", "spark", "--master", "local[2]", "--conf", "spark.driver.memory=512m")
A_MESSAGE, A_QUEUE = 0.5, 200


def bytes_home() -> int:
    """Bytes of all results that the tasks of the running session have sent so far."""
    session = running_session()
    if session is None:
        return 0
    context: Any = session.context
    running = context._jsc.sc()
    running.listenerBus().waitUntilEmpty()
    none = context._gateway.new_array(context._jvm.double, 0)
    stages = running.statusStore().stageList(None, False, False, none, None)
    return sum(stages.apply(number).resultSize() for number in range(stages.size()))


def sent(root: Path, *arguments: str) -> int:
    """Bytes that a verify sends home which finds nothing wrong."""
    mqtool("verify", root, "--only", "commitlog", *SPARK)  # the session runs
    before = bytes_home()
    assert mqtool("verify", root, *arguments, *SPARK).code == 0
    return bytes_home() - before


@pytest.mark.slow
@pytest.mark.parametrize(("topics", "queues"), [(2, 2), (40, 10)])
def test_a_sound_store_sends_half_a_byte_a_message_and_200_bytes_a_queue(
    topics: int, queues: int, tmp_path: Path,
) -> None:
    messages = 24_000
    synth_store(tmp_path / "s", messages=messages, topics=topics, queues=queues, mapped_file_size=16 << 20,
                queue_file_size=6_000 * CQ_UNIT.size, index_slots=5_000, index_entries=50_000)
    for part in ("--only", "commitlog"), ("--only", "consumequeue"), ():
        home = sent(tmp_path / "s", *part)
        assert 0 < home <= A_MESSAGE * messages + A_QUEUE * topics * queues, part

"""A command line in this process, then what Spark took: `python -m benchmarks.spark_stages FILE COMMAND ...`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from mqtool.cli import main
from recover.cluster.session import running_session


def stages() -> list[dict[str, Any]]:
    """Of each stage that ran: what its job was for, tasks, milliseconds of its tasks, bytes shuffled; in order."""
    session = running_session()
    if session is None:
        return []
    context = session.context
    quantiles = context._gateway.new_array(context._jvm.double, 0)
    found = context._jsc.sc().statusStore().stageList(None, False, False, quantiles, None)
    ran = [found.apply(number) for number in range(found.size())]
    return [
        {"job": _said(stage.description()), "tasks": stage.numCompleteTasks(),
         "milliseconds": stage.executorRunTime(), "shuffled": stage.shuffleWriteBytes()}
        for stage in sorted(ran, key=lambda item: int(item.stageId()))
    ]


def _said(option: Any) -> str:
    return str(option.get()) if option.isDefined() else ""


if __name__ == "__main__":
    code = main(sys.argv[2:])
    Path(sys.argv[1]).write_text(json.dumps(stages()))
    sys.exit(code)

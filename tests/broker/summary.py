"""What a run with real brokers comes to: counts by kind, by version and by file, and the matrix for the docs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fixtures.lab.observe import keep, kept_observations
from fixtures.lab.table import MATRIX, matrix
from fixtures.lab.toolchain import RELEASES

#: Of an observation: what the table of costs is made from.
COSTS = ("starts", "loaded", "error", "lost", "unreachable", "duplicated_offsets", "bad_crc", "undecodable")
_OUTCOMES = ("passed", "failed", "error", "skipped")


def cases(reports: Mapping[str, Iterable[Any]]) -> list[tuple[dict[str, Any], str]]:
    """(properties, outcome) of every test with brokers, by what pytest has collected under its outcomes."""
    found = []
    for outcome in _OUTCOMES:
        for report in reports.get(outcome, ()):
            properties = dict(getattr(report, "user_properties", ()))
            if "broker_case" in properties:
                found.append((properties, "failed" if outcome == "error" else outcome))
    return found


def lines(found: list[tuple[dict[str, Any], str]]) -> Iterator[str]:
    """The counts in words; nothing if no test with brokers ran."""
    if not found:
        return
    yield f"{'cases with real brokers':64}{'passed':>8}{'failed':>8}{'not applicable':>16}"
    yield from _table(
        (case["broker_case"]["kind"].removeprefix("test_").replace("_", " "), outcome) for case, outcome in found
    )
    versions = [("broker " + case["broker_case"].get("version", "(several)"), outcome) for case, outcome in found]
    yield from _table(versions)
    starts: Counter[str] = Counter()
    for case, _ in found:
        starts.update(case.get("starts", {}))
    told = ", ".join(f"{version} {starts[version]:,}" for version in sorted(starts))
    yield f"{len(found):,} cases, {sum(outcome == 'failed' for _, outcome in found)} mismatches; starts: {told}"


def _table(rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    counts: dict[str, Counter[str]] = {}
    for name, outcome in rows:
        counts.setdefault(name, Counter())[outcome] += 1
    for name in sorted(counts):
        one = counts[name]
        yield f"  {name:62}{one['passed']:>8,}{one['failed']:>8,}{one['skipped']:>16,}"


def write_matrix(found: list[tuple[dict[str, Any], str]]) -> None:
    """Put what this run saw into the kept matrix: what each start costs, what each version delivers after recover."""
    known: dict[str, dict[str, dict[str, Any]]] = matrix() if MATRIX.exists() else {}
    for case, _ in found:
        about = case["broker_case"]
        if not {"observed", "recovered"} & case.keys():
            continue
        row = known.setdefault(about["store"], {}).setdefault(about["damage"], {})
        if "observed" in case:
            costs = {key: case["observed"][key] for key in COSTS if key in case["observed"]}
            row["start"] = _in_order({**row.get("start", {}), about["version"]: costs})
        if "recovered" in case:
            row["recovered"] = case["recovered"]
    MATRIX.write_text(_text({store: dict(sorted(rows.items())) for store, rows in sorted(known.items())}), "utf-8")


def _in_order(versions: Mapping[str, Any]) -> dict[str, Any]:
    return {version: versions[version] for version in RELEASES if version in versions}


def _text(matrix: Mapping[str, Mapping[str, Any]]) -> str:
    """One damage a line: a change of behaviour is a changed line."""
    blocks = [
        f"{json.dumps(store)}: {{\n"
        + ",\n".join(f" {json.dumps(n)}: {json.dumps(row)}" for n, row in rows.items())
        + "\n}"
        for store, rows in matrix.items()
    ]
    return "{\n" + ",\n".join(blocks) + "\n}\n"


def write_observed(found: list[tuple[dict[str, Any], str]]) -> None:
    """Replace the kept observations of the stores that have any by what this run saw."""
    seen: dict[str, dict[str, dict[str, Any]]] = {}
    for case, _ in found:
        about = case["broker_case"]
        if "observed" in case and kept_observations(about["store"]):
            seen.setdefault(about["store"], {}).setdefault(about["damage"], {})[about["version"]] = case["observed"]
    for store, damages in seen.items():
        kept = kept_observations(store)
        for damage, versions in damages.items():
            kept[damage] = _in_order({**kept.get(damage, {}), **versions})
        keep(store, kept)

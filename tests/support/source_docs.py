"""The tables of columns in docs/spark-sql.md, read from the schemas.

`python -m tests.support.source_docs` rewrites them in place.
"""

from __future__ import annotations

import pyarrow as pa

from recover.cluster.sources import SOURCES, spark_type
from tests.support.command_docs import DOCS

PAGE = DOCS / "spark-sql.md"
_BEGIN, _END = "<!-- columns -->\n", "<!-- end -->\n"


def _table(name: str, schema: pa.Schema) -> str:
    rows = "".join(f"| `{field.name}` | {spark_type(field.type)} |\n" for field in schema)
    return f"\n**{name}**\n\n| column | type |\n|---|---|\n{rows}"


def render(text: str) -> str:
    """Return the page's text with its tables brought up to date."""
    head, rest = text.split(_BEGIN)
    tail = rest.split(_END)[-1]
    return head + _BEGIN + "".join(_table(s.name(), s.rows) for s in SOURCES) + "\n" + _END + tail


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text()))

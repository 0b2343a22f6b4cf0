"""The site and the man pages: `make site` builds both from the pages in docs/, with links checked.

Pages stay plain Markdown that reads well where the code is hosted; nothing here is needed to read them.
"""

from __future__ import annotations

import re
import textwrap
import tomllib
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PROJECT = tomllib.loads((HERE.parent / "pyproject.toml").read_text("utf-8"))["project"]

project, author, release = "mqtool", "the mqtool maintainers", PROJECT["version"]
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
root_doc = "index"
exclude_patterns = ["notes", "notebooks"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
# links to files outside of docs/, such as schemas and the license, lead to the code and are checked by tests/project
suppress_warnings = ["myst.xref_missing", "misc.highlighting_failure"]
nitpicky = False
html_theme = "furo"
html_title = f"mqtool {release}"
html_static_path: list[str] = []
html_theme_options = {"sidebar_hide_name": False}

def _in_short(page: Path) -> str:
    """The first sentence of a page without its marks, as `man -k` lists it."""
    sentence = re.split(r"(?<=[a-z)`])[.:] ", page.read_text("utf-8").splitlines()[2])[0]
    plain = re.sub(r"`|\[([^]]*)\]\([^)]*\)| \([^)]*\)", r"\1", sentence)
    return textwrap.shorten(plain.rstrip("."), 80, placeholder=" …")


man_pages = [("index", "mqtool", PROJECT["description"], author, 1)] + [
    (f"commands/{page.stem}", f"mqtool-{page.stem}", _in_short(page), author, 1)
    for page in sorted((HERE / "commands").glob("*.md"))
]

CONTENTS = (("In trouble", ("runbooks/README", "runbooks/*")), ("Commands", ("commands/*",)), ("Reference", ("*",)),
            ("中文", ("zh/*",)))


def setup(app: Any) -> None:
    """Give the first page the contents of the sidebar, which would be noise in a file view."""

    def contents(_: Any, page: str, source: list[str]) -> None:
        if page == root_doc:
            for caption, pages in CONTENTS:
                head = f":::{{toctree}}\n:hidden:\n:glob:\n:caption: {caption}"
                source[0] += "\n\n".join(["", head, "\n".join(pages), ":::"])

    def plain(_: Any, tree: Any, __: str) -> None:
        if app.builder.name == "man":  # a link to another page is its words: it would end in an empty address
            for link in [*tree.findall(lambda node: node.tagname == "reference" and not node.get("refuri", ""))]:
                link.replace_self(link.children)

    app.connect("source-read", contents)
    app.connect("doctree-resolved", plain)

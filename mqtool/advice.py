"""What to type next, for the store at hand: its name quoted for a shell, and no command that would be refused."""

from __future__ import annotations

import re
import shlex
from urllib.parse import parse_qs

_CHANGES = re.compile(r"mqtool (?:recover|truncate|rebuild[a-z-]*|apply|undo|resume)\b[^`]*?\{store\}")
_COPY = "DIR"


def with_store(text: str, store: str | None) -> str:
    """Texts of findings and refusals name the store as `{store}`; whoever prints them fills it in.

    A command that changes a store on s3:// or hdfs:// becomes one on a copy, behind the one that makes it.
    """
    if store is None:
        return text.replace("{store}", "STORE")
    if "://" in store and _CHANGES.search(text):
        return (f"Such a store is never changed where it is. Copy it to a disk: {copy_command(store)}; then "
                f"{text.replace('{store}', _COPY)}")
    return text.replace("{store}", shlex.quote(store))


def to_type(command: str, store: str) -> str:
    """A command line about `{store}` to type next; what changes a remote store is done to a copy, made first."""
    if "://" in store and _CHANGES.search(command):
        return f"{copy_command(store)} && {command.replace('{store}', _COPY)}"
    return command.replace("{store}", shlex.quote(store))


def copy_command(place: str) -> str:
    """What copies a remote store into the folder DIR.

    >>> copy_command("s3://b/my store?endpoint_override=HOST:9000&scheme=http")
    "aws s3 sync 's3://b/my store' DIR --endpoint-url http://HOST:9000"
    >>> copy_command("hdfs://name:8020/store")
    'hdfs dfs -get hdfs://name:8020/store DIR'
    """
    base, _, query = place.partition("?")
    scheme, _, rest = base.partition("://")
    if not scheme.startswith("s3"):
        return f"hdfs dfs -get {shlex.quote(base)} {_COPY}"
    options = {name: values[-1] for name, values in parse_qs(query).items()}
    line = f"aws s3 sync {shlex.quote(f's3://{rest}')} {_COPY}"
    if "endpoint_override" in options:
        endpoint = f"{options.get('scheme', 'https')}://{options['endpoint_override']}"
        line += f" --endpoint-url {shlex.quote(endpoint)}"
    return line

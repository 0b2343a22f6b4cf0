"""The language of what a person reads: a gettext catalogue over the English in the code.

1. English is the source: a text without a translation stays English, so no screen is ever empty.
2. The language is that of `--lang`, else of the locale (LC_ALL, LC_MESSAGES, LANG). Documents (`--json`), journals and
   plans are always English: scripts read them.
3. What recover/ says is put together there, in English, and keeps its template and its values (`Phrase`): it is told by
   the translation of the template, filled with the same values. A plan or a journal holds the English text alone.

Names of commands, options, files, codes and settings are not translated.
"""

from __future__ import annotations

import gettext
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from recover.findings.code import N_ as N_
from recover.findings.model import Finding, Phrase, rendered

LANGUAGES = ("en", "zh_CN")
DOMAIN = "mqtool"
COUNTED = "after a number"
"""The context of nouns that follow a number."""
FOLDER = Path(__file__).with_name("locale")
_VARIABLES = ("LC_ALL", "LC_MESSAGES", "LANG")


class _Spoken:
    """The language of this process."""

    catalogue: gettext.NullTranslations = gettext.NullTranslations()
    name = "en"


@cache
def _catalogue(language: str) -> gettext.NullTranslations:
    return gettext.translation(DOMAIN, FOLDER, [language], fallback=True)


def language_of(environment: Mapping[str, str] = os.environ) -> str:
    """Return the language of the locale: `zh_CN` for any Chinese one, else `en`."""
    said = next((environment[name] for name in _VARIABLES if environment.get(name)), "")
    return "zh_CN" if said.lower().startswith("zh") else "en"


@contextmanager
def speaking(language: str | None) -> Iterator[None]:
    """Tell everything within in this language; None: that of the locale. A process that runs several command lines
    takes nothing of one into the next."""
    before = _Spoken.name, _Spoken.catalogue
    _Spoken.name = language or language_of()
    _Spoken.catalogue = _catalogue(_Spoken.name) if _Spoken.name != "en" else gettext.NullTranslations()
    try:
        yield
    finally:
        _Spoken.name, _Spoken.catalogue = before


def language() -> str:
    return _Spoken.name


def _(text: str) -> str:
    """Return the text in the language that is spoken; itself if there is no translation."""
    return _Spoken.catalogue.gettext(text) if text else text


def C_(noun: str) -> str:  # noqa: N802
    """Mark a noun that is shown after a number."""
    return noun


def counted(noun: str) -> str | None:
    """Return a noun as it stands after a number, with its measure word; None where it is as in English."""
    found = _Spoken.catalogue.pgettext(COUNTED, noun)
    return None if found == noun else found


def listed(parts: Iterable[str]) -> str:
    """Return parts of a sentence with commas between them."""
    return _(", ").join(parts)


def told(item: Finding) -> tuple[str, str]:
    """Return message and remedy of a finding in the language that is spoken, before `{store}` is filled in."""
    return retold(item.message), retold(item.remedy)


def retold(text: str) -> str:
    """Return a text of recover/ in the language that is spoken: a phrase from its template and values, any other from
    the catalogue."""
    if _Spoken.name == "en" or not text:
        return text
    if isinstance(text, Phrase):
        return rendered(_(text.template), {name: _retold_value(value) for name, value in text.values.items()})
    return _(text)


def _retold_value(value: Any) -> Any:
    if isinstance(value, tuple):
        return listed(map(retold, value))
    return retold(value) if isinstance(value, str) else value

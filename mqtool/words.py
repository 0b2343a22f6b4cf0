"""The language of what a person reads: a gettext catalogue over the English in the code.

1. English is the source: a text without a translation stays English, so no screen is ever empty.
2. The language is that of `--lang`, else of the locale (LC_ALL, LC_MESSAGES, LANG). Documents (`--json`), journals and
   plans are always English: scripts read them.
3. A finding is told from its row and its facts, so a stored one can be told in any language. A message that is not that
   of its row stays as it is.

Names of commands, options, files, codes and settings are not translated.
"""

from __future__ import annotations

import gettext
import os
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from recover.findings.model import CODES, Finding, rendered

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


def speak(language: str | None) -> None:
    """Tell everything from now on in this language; None: that of the locale."""
    _Spoken.name = language or language_of()
    _Spoken.catalogue = _catalogue(_Spoken.name) if _Spoken.name != "en" else gettext.NullTranslations()


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


def N_(text: str) -> str:  # noqa: N802 - gettext's own name
    """Mark a text that is translated where it is shown."""
    return text


def told(item: Finding) -> tuple[str, str]:
    """Return message and remedy of a finding in the language that is spoken, before `{store}` is filled in."""
    if _Spoken.name == "en":
        return item.message, item.remedy
    kind = CODES[item.code]
    return (_again(item.message, kind.messages(item.facts), item), _again(item.remedy, (kind.remedy,), item))


def _again(text: str, templates: Iterable[str], item: Finding) -> str:
    facts: dict[str, Any] = {**item.facts, "file": item.file, "offset": item.offset}
    for template in filter(None, templates):
        if rendered(template, facts) == text:
            return rendered(_(template), {name: _(value) if isinstance(value, str) else value
                                          for name, value in facts.items()})
    return _(text)

"""The languages of the page: its own texts and those of reasons, from two tables; the rest English.

Evidence and conclusions are sentences about objects, which are not translated: they are marked as
English. Reason codes, commands and names are the same in each language.
"""

import tomllib
from collections.abc import Mapping
from functools import lru_cache
from importlib import resources
from typing import Final

from markupsafe import Markup, escape

from vgpu.model.printable_text import printable
from vgpu.model.units import count, count_more

LANGUAGES: Final[Mapping[str, str]] = {"en": "English", "zh-CN": "中文"}
"""The languages, by their codes in HTML; the first is the default."""

COOKIE: Final = "vgpu-fleet-language"
"""The cookie with the language that was chosen."""

PARAMETER: Final = "lang"
"""The parameter of an address that chooses a language."""

_ENGLISH: Final = next(iter(LANGUAGES))


class Texts:
    """The texts of one language. Its texts are HTML, what is put into them is escaped."""

    def __init__(self, language: str, texts: Mapping[str, str], reasons: Mapping[str, str]) -> None:
        self.language = language
        self._texts, self._reasons = texts, reasons

    def __call__(self, text: str) -> Markup:
        """A text of the page itself."""
        return Markup(self._texts.get(text) or text)  # noqa: S704  # texts of this package

    def count(self, number: int, noun: str) -> str:
        """A number of things, such as ``2 pods``."""
        if self.language == _ENGLISH:
            further = noun.removeprefix("more ")
            return count(number, noun) if further == noun else count_more(number, further)
        return f"{number} {self._texts.get(noun) or noun}"

    def reason(self, text: str) -> Markup:
        """The text of a reason; one that has no translation is marked as English."""
        translated = self._reasons.get(text)
        return escape(translated) if translated else self.english(text)

    def english(self, text: str) -> Markup:
        """A sentence about objects, which stays English."""
        shown = escape(printable(text))
        if self.language == _ENGLISH or not shown:
            return shown
        return Markup('<span lang="en">{}</span>').format(shown)


def table(name: str) -> dict[str, str]:
    """A table of texts of this package: English -> Chinese, "" for one that is not translated."""
    content = resources.files("fleet").joinpath("texts", f"{name}.toml").read_text("utf-8")
    return tomllib.loads(content)


@lru_cache(maxsize=len(LANGUAGES))
def texts_of(language: str) -> Texts:
    """The texts of one of the languages."""
    if language == _ENGLISH:
        return Texts(language, {}, {})
    return Texts(language, table("page"), table("reasons"))


def chosen_language(parameter: str, cookies: str, accepted: str) -> str:
    """The language of a request: of its address, else of its cookie, else of Accept-Language."""
    pairs = (each.strip().partition("=") for each in cookies.split(";"))
    kept = [value for name, _, value in pairs if name == COOKIE]
    for wanted in (parameter, *kept):
        if wanted in LANGUAGES:
            return wanted
    ranked = sorted(map(_ranked, accepted.split(",")), key=lambda each: -each[0])
    known = {code.partition("-")[0]: code for code in LANGUAGES}
    primary = (tag.strip().lower().partition("-")[0] for quality, tag in ranked if quality > 0)
    return next((known[each] for each in primary if each in known), _ENGLISH)


def _ranked(accepted: str) -> tuple[float, str]:
    """The quality and the tag of an entry such as ``zh-CN;q=0.8``; 0 for one that is not valid."""
    tag, _, parameters = accepted.partition(";")
    name, _, text = parameters.strip().partition("=")
    if name.strip() != "q":
        return 1.0, tag
    try:
        quality = float(text)
    except ValueError:
        return 0.0, tag
    return (quality if 0 <= quality <= 1 else 0.0), tag

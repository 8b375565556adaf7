"""Views as HTML: templates that escape everything, numbers with the command that owns them.

A number is ``<data id="OWNER:PATH" value="NUMBER">text</data>``: OWNER is the command whose JSON
document has it, PATH is where, with the names of the objects in place of positions. A page's own
numbers have the owner ``page`` and are in its ``.json``.
"""

import math
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from importlib import resources
from typing import Any, Final
from urllib.parse import quote

from jinja2 import Environment, FunctionLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from fleet.history import RANGES, drawn
from fleet.language import LANGUAGES
from fleet.nodes import SORTS
from fleet.pages import PAGES, link
from vgpu import __version__
from vgpu.ledger.limit_verdict import limit_word
from vgpu.model.durations import age
from vgpu.model.printable_text import printable
from vgpu.model.units import percentage, rounded_size
from vgpu.quota.resources import amount_text

FOLDER: Final = "templates"

UNKNOWN: Final = Markup('<span class="unknown" title="unknown">–</span>')
"""In place of a number that is not known."""


def number(owner: str, *path: object, value: float | None, text: str = "") -> Markup:
    """A number with its owner; without a value a dash: it is unknown.

    A part of the path may be a tuple of parts.
    """
    if value is None:
        return UNKNOWN
    parts = [each for part in path for each in (part if isinstance(part, tuple) else (part,))]
    where = "/".join(quote(str(part), safe="") for part in parts)
    return Markup('<data id="{}" value="{}">{}</data>').format(
        f"{owner}:{where}", value, text or value
    )


def _size(value: int | None) -> str:
    return "" if value is None else rounded_size(value)


def _amount(resource: str, value: int) -> str:
    return amount_text(resource, value, rounded_size)


def _part(value: float | None, whole: float | None) -> int:
    """How much of the whole a value is, in percent, for the width of a bar: 0 to 100."""
    if not value or not whole or value < 0:
        return 0
    return min(100, math.ceil(100 * value / whole))


def _shown(value: object) -> object:
    """What tenants write as one line without control characters."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


@lru_cache(maxsize=1)
def environment() -> Environment:
    """The templates of this package, with their functions and filters."""
    folder = resources.files("fleet").joinpath(FOLDER)

    def load(name: str) -> str | None:
        file = folder.joinpath(name)
        return file.read_text("utf-8") if file.is_file() else None

    made = Environment(
        loader=FunctionLoader(load),
        autoescape=select_autoescape(default=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    made.globals.update(
        number=number,
        link=link,
        languages=LANGUAGES,
        version=__version__,
        part=_part,
        ago=ago,
        amount=_amount,
        sorts=tuple(SORTS),
        ranges=tuple(RANGES),
        drawn=drawn,
        limit_word=limit_word,
        nav=[(page.path, page.title) for page in PAGES if page.title],
    )
    made.filters.update(size=_size, percentage=percentage)
    return made


def text_of(name: str) -> bytes:
    """A file of the package that is served as it is."""
    return resources.files("fleet").joinpath(FOLDER, name).read_bytes()


def rendered(template: str, values: Mapping[str, Any]) -> bytes:
    """The page of a template."""
    return environment().get_template(template).render(values).encode()


def ago(now: float, since: datetime | None) -> Markup:
    """How long ago, for people, with the time itself; a dash if unknown."""
    elapsed = "" if since is None else age(now - since.timestamp())
    if since is None or not elapsed:
        return UNKNOWN
    return Markup('<time datetime="{}">{}</time>').format(since.isoformat(), elapsed)

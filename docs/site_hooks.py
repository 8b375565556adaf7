"""What the site of the documentation needs beyond the pages as they are; mkdocs.yml names it.

The pages are written for a forge, where README is the first one and links go to files. Here README,
CHANGELOG and CONTRIBUTING become pages, and links between them and docs/ are bent accordingly.
"""

import posixpath
import re
from html import escape, unescape
from typing import TYPE_CHECKING, Any, Final

from deploy.project import ROOT, load
from docs.translations import TRANSLATED, with_status

if TYPE_CHECKING:  # `make check` and a release use the links below without mkdocs
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

OUTSIDE: Final = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "README.zh-CN.md": "zh/index.md",
}
"""Pages that are not in docs/, by their place in the repository, and as what they appear."""

NOT_PUBLISHED: Final = (".py", ".toml")
"""Ends of the names of files in docs/ that the site does not have, as mkdocs.yml excludes them."""

_SOURCES: Final = {page: source for source, page in OUTSIDE.items()}
_LINK: Final = re.compile(r"\[([^\]]*)\]\((?![a-z]+:|#)([^)\s]+)\)")
_CELL: Final = re.compile(r"<td.*?</td>", re.DOTALL)
_BLOCK: Final = re.compile(r'<div class="highlight">(<pre>.*?</pre>)</div>', re.DOTALL)
_PROMPT: Final = '<span class="gp">'
_OUTPUT: Final = re.compile(r'<span class="go">.*?</span>\n?', re.DOTALL)
_UNCOPIED: Final = re.compile(r'<span class="gp">.*?</span>|<[^>]+>', re.DOTALL)


def on_config(config: "MkDocsConfig") -> "MkDocsConfig":
    """The site knows where it is published, and where its source is."""
    project = load(ROOT / config.extra["project"])
    config.site_url = f"{project.site}/" if project.site else None
    config.repo_url, config.repo_name, config.edit_uri = project.address or None, "Source", ""
    return config


def on_files(files: "Files", *, config: Any) -> "Files":
    """The pages from outside are added."""
    from mkdocs.structure.files import File  # noqa: PLC0415  # see above

    for source, page in OUTSIDE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Links lead to where their target is on the site; what is not there is only named.

    A translation shows whether it may be older than the English page.
    """
    name = _SOURCES.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    if name in TRANSLATED:
        markdown = with_status(name, markdown, (ROOT / TRANSLATED[name]).read_text())
    return _LINK.sub(lambda link: bent(link[1], link[2], page.file.src_uri), markdown)


def on_page_content(html: str, **_: Any) -> str:
    """In a table a bar is written with a backslash, which must not be shown in its code; of a
    terminal's text the button copies the commands.
    """
    html = _CELL.sub(lambda cell: cell[0].replace("\\|", "|"), html)
    return _BLOCK.sub(lambda block: with_commands(block[1]), html)


def with_commands(block: str) -> str:
    """A block of code with the text for the button, if it has prompts: commands without output."""
    if _PROMPT not in block:
        return f'<div class="highlight">{block}</div>'
    commands = unescape(_UNCOPIED.sub("", _OUTPUT.sub("", block)))
    return f'<div class="highlight" data-copy="{escape(commands.strip())}">{block}</div>'


def bent(text: str, link: str, here: str) -> str:
    """A link of the page ``here``, as it has to be on the site."""
    target, mark, anchor = link.partition("#")
    folder = posixpath.dirname(_SOURCES.get(here, f"docs/{here}"))
    place = posixpath.normpath(posixpath.join(folder, target))
    if place not in OUTSIDE and (not place.startswith("docs/") or place.endswith(NOT_PUBLISHED)):
        return text
    page = OUTSIDE.get(place, place.removeprefix("docs/"))
    return f"[{text}]({posixpath.relpath(page, posixpath.dirname(here) or '.')}{mark}{anchor})"

"""The README as package indexes show it: its links lead to the site of the documentation."""

import re
from typing import Final

from readme_renderer import markdown

from deploy.release.commands import ReleaseError
from docs.site_hooks import bent

_LINK: Final = re.compile(r"\[([^\]]*)\]\((?![a-z]+:|#)([^)\s]+)\)")
_RENDERED_LINK: Final = re.compile(r'(?:href|src)="(?![a-z]+:|#)([^"]*)"')


def published(text: str, site: str) -> str:
    """The README's text with absolute links.

    Raises:
        ReleaseError: a package index cannot render the text, or a link has no page on the site.
    """
    text = _LINK.sub(lambda link: _absolute(bent(link[1], link[2], "index.md"), site), text)
    rendered = markdown.render(text)
    if rendered is None:
        raise ReleaseError("README.md: package indexes cannot render it")
    if relative := _RENDERED_LINK.findall(rendered):
        raise ReleaseError(f"README.md: links that are no pages of the site: {', '.join(relative)}")
    return text


def _absolute(link: str, site: str) -> str:
    def page(match: re.Match[str]) -> str:
        target, mark, anchor = match[2].partition("#")
        target = re.sub(r"(^|/)README\.md$", r"\1index.md", target)
        return f"[{match[1]}]({site}/{re.sub(r'[.]md$', '.html', target)}{mark}{anchor})"

    return _LINK.sub(page, link)

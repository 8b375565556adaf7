"""The site builds without a complaint and without a network, and all its links lead somewhere."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from urllib.parse import unquote

import pytest

from tests.support.environment import GOLDEN_FILES, ROOT

pytestmark = pytest.mark.slow

NOWHERE = "http://127.0.0.1:9"
"""A proxy that nobody is: whatever is fetched by HTTP fails."""

LOADED = {"link": "href", "script": "src", "img": "src", "source": "src", "iframe": "src"}
"""Elements that a browser fetches, by the attribute with its URL."""

SITE, SOURCE = "https://docs.example.com/vgpu", "https://github.com/example/vgpu"
PROJECT = """\
address = "{}"
site = "{}"
image = ""
security_contact = ""
"""

OUTSIDE = re.compile(r"(?:[a-z]+:)?//")
FETCHED_BY_CSS = re.compile(r"(?:@import\s+|url\()[\"']?(?:https?:)?//")


class Page(HTMLParser):
    """What a page points to, and what can be pointed to in it."""

    def __init__(self, path):
        super().__init__()
        self.links, self.loaded, self.anchors = [], [], {""}
        self.copied, self.prompts = [], 0
        self.feed(path.read_text())

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.anchors |= {attributes[key] for key in ("id", "name") if attributes.get(key)}
        self.copied += [attributes["data-copy"]] if attributes.get("data-copy") else []
        self.prompts += attributes.get("class") == "gp"
        if tag == "a" and attributes.get("href"):
            self.links.append(attributes["href"])
        elif tag in LOADED and attributes.get(LOADED[tag]) and attributes.get("rel") != "canonical":
            self.loaded.append(attributes[LOADED[tag]])


class Rendered(HTMLParser):
    """The texts of paragraphs and items of lists, without code, and the cells of rows that are
    filled: what a reader sees of Markdown that was not understood.
    """

    def __init__(self, text):
        super().__init__()
        self.texts, self.rows, self.broken_lists = [], [], 0
        self._open, self._cell, self._code = [], False, 0
        article = re.search("<article.*?</article>", text, re.DOTALL)
        self.feed(article[0] if article else text)

    def handle_starttag(self, tag, attrs):
        if tag in {"p", "li"}:
            self._open.append("")
        elif tag == "tr":
            self.rows.append([])
        elif tag in {"td", "th"}:
            self.rows[-1].append(False)
            self._cell = True
        elif tag == "ol":
            self.broken_lists += "start" in dict(attrs)
        self._code += tag in {"code", "pre"}
        self._filled(tag == "img")

    def handle_endtag(self, tag):
        if tag in {"p", "li"} and self._open:
            self.texts.append(self._open.pop())
        elif tag in {"td", "th"}:
            self._cell = False
        self._code -= tag in {"code", "pre"}

    def handle_data(self, data):
        self._filled(data.strip())
        if self._open:
            self._open[-1] += "`" * bool(data) if self._code else data

    def _filled(self, what):
        if self._cell and what:
            self.rows[-1][-1] = True


NOT_UNDERSTOOD = re.compile(
    r"(?<!\S)[2-9]\. |\n\s*(?:\d+\.|[-*+]) |^\s*\|.*\||\*\*|\]\(", re.MULTILINE
)
"""An item of a list, a row, bold text or a link within a paragraph."""


def wrongly_rendered(text):
    """What a page shows of Markdown that was not understood."""
    page = Rendered(text)
    for paragraph in page.texts:
        if NOT_UNDERSTOOD.search(paragraph):
            yield " ".join(paragraph.split())
    if page.broken_lists:
        yield f"{page.broken_lists} lists that do not begin at 1"
    for row in page.rows:
        if len(row) > 1 and sum(row) < 2:
            yield f"a row with {sum(row)} filled of {len(row)} cells"


@pytest.fixture(scope="module", params=["nowhere", "published"])
def site(tmp_path_factory, request):
    """The site without an address, and as a publisher builds it."""
    folder = tmp_path_factory.mktemp("site")
    env = os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    addresses = (SOURCE, SITE) if request.param == "published" else ("", "")
    project = tmp_path_factory.mktemp("project") / "project.toml"
    project.write_text(PROJECT.format(*addresses))
    env["VGPU_PROJECT"] = str(project)
    env |= dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), NOWHERE)
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    built = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site):
    found = {path: Page(path) for path in site.rglob("*.html") if path.name != "404.html"}
    assert site / "index.html" in found
    return found


def test_every_link_and_anchor_leads_somewhere(site, pages):
    broken = []
    for path, page in pages.items():
        for link in (*page.links, *page.loaded):
            if OUTSIDE.match(link):
                continue
            target, _, anchor = unquote(link).partition("#")
            there = (path.parent / target).resolve() if target else path
            there = there / "index.html" if there.is_dir() else there
            known = pages[there].anchors if there in pages else {""}
            if not there.is_file() or anchor not in known:
                broken.append((str(path.relative_to(site)), link))
    assert broken == []


def test_nothing_is_fetched_from_elsewhere(site, pages):
    assert [link for page in pages.values() for link in page.loaded if OUTSIDE.match(link)] == []
    styles = "".join(path.read_text() for path in site.rglob("*.css"))
    assert FETCHED_BY_CSS.findall(styles) == []


def test_pages_know_where_they_are_published_and_where_their_source_is(site, request):
    published = "published" in request.node.callspec.id
    text = (site / "runbooks" / "alerts" / "VgpuExporterDown.html").read_text()
    address = f'rel="canonical" href="{SITE}/runbooks/alerts/VgpuExporterDown.html"'
    assert (address in text) is ('rel="canonical"' in text) is published
    assert (f'href="{SOURCE}"' in text) is ("md-source" in text) is published
    assert 'data-md-component="source"' not in text  # it would ask the forge for its stars


def test_the_readme_is_the_first_page_and_its_pictures_are_there(pages, site):
    first = pages[site / "index.html"]
    assert "gpu-shares.png" in first.loaded
    assert "install.html" in first.links


def test_a_bar_in_a_tables_code_is_shown_without_its_backslash(site):
    assert "--log.format [logfmt|json]" in (site / "cli.html").read_text()


def test_the_button_of_a_terminals_text_copies_the_commands_without_prompts_and_output(site, pages):
    copied = {str(path.relative_to(site)): page.copied for path, page in pages.items()}
    texts = {name: lines for name, lines in copied.items() if lines}
    assert any("helm install" in text for text in texts["install.html"])
    assert any(text.startswith("python3 -m venv") for text in texts["install.html"])  # as root
    copied = [line for page in pages.values() for text in page.copied for line in text.splitlines()]
    assert [line for line in copied if line.startswith(("$ ", "# ", "<"))] == []
    assert not any("&lt;" in line or "&quot;" in line for line in copied)
    prompts = sum(page.prompts for page in pages.values())
    assert len(copied) >= prompts > 80


def test_lists_and_tables_are_rendered_as_such(site, pages):
    wrong = [
        (str(path.relative_to(site)), defect)
        for path in pages
        for defect in wrongly_rendered(path.read_text())
    ]
    assert wrong == []


@pytest.mark.parametrize(
    "text",
    [
        "<p>1. Look. 2. Act.</p>",
        "<p>a table\n4. Compare</p>",
        "<p>text\n- item</p>",
        "<p>| a | b |</p>",
        '<ol start="2"><li>a</li></ol>',
        "<table><tr><td>a</td><td></td></tr></table>",
        "<table><tr><td></td><td></td><td>a</td></tr></table>",
    ],
)
def test_markdown_that_was_not_understood_is_found(text):
    assert list(wrongly_rendered(text))


@pytest.mark.parametrize(
    "text",
    [
        "<p>It is never 0. The port is 9395. <code>2. x</code> is code.</p>",
        "<ol><li>Look.</li><li>Act.</li></ol>",
        "<table><tr><td>a</td><td></td><td>b</td></tr></table>",
        '<table><tr><td>a</td><td><img src="x"></td></tr></table>',
    ],
)
def test_markdown_that_was_understood_is_no_defect(text):
    assert not list(wrongly_rendered(text))


def test_the_menu_asks_questions_and_has_the_four_kinds_of_pages():
    text = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    sections = re.findall(r'^ *- "?([^"\n]*)"?:$', text, re.MULTILINE)
    kinds = [name.partition(":")[0] for name in sections if not name.startswith("…")]
    assert kinds[:4] == ["Tutorial", "How-to", "Reference", "Explanation"]
    assert [name for name in sections if not name.endswith(("?", "？", "how do I …"))] == []


def test_no_published_page_is_lost(site):
    """Alerts, dashboards and other sites have their addresses."""
    addresses = (GOLDEN_FILES / "pages-of-the-site.txt").read_text().split()
    assert [address for address in addresses if not (site / address).is_file()] == []


def test_the_theme_copies_what_the_page_names(site):
    scripts = "".join(path.read_text() for path in site.glob("assets/javascripts/bundle*.js"))
    assert 'closest("[data-copy]")' in scripts


def test_what_is_no_page_is_not_published(site):
    assert not list(site.rglob("*.py"))

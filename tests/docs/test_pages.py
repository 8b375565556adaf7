"""What the pages name is there: links, commands, flags, metrics and alerts."""

import re

import click
import pytest

from deviceplugin.events import Word
from tests.support.doc_pages import (
    BLOCK,
    FLAG,
    METRIC,
    all_flags,
    anchors,
    command,
    commands,
    flags,
    links,
)
from tests.support.environment import ROOT

DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), *(ROOT / "deploy").rglob("*.md"), *ROOT.glob("*.md")])
WRITTEN = sorted(page for page in PAGES if "<!-- Generated" not in page.read_text()[:20])

OWN_FLAG = re.compile(r"(?<![\w-])--[a-z]+\.[a-z][a-z.-]*[a-z]")
"""A flag with a dot in its name is one of ours; the originals' have none."""

ALERT = re.compile(r"\bVgpu[A-Z]\w+")
LIST_ITEM = re.compile(r"(- |\d+\. )")


def name(page):
    return str(page.relative_to(ROOT))


each_page = pytest.mark.parametrize("page", PAGES, ids=name)
each_written_page = pytest.mark.parametrize("page", WRITTEN, ids=name)


@each_page
def test_links_lead_to_files_and_headings(page):
    for link in links(page.read_text()):
        target, _, anchor = link.partition("#")
        there = page.parent / target if target else page
        assert there.exists(), link
        assert not anchor or anchor in set(anchors(there.read_text())), link


@each_page
def test_a_list_begins_after_an_empty_line_or_the_site_shows_none(page):
    lines = BLOCK.sub("", page.read_text()).splitlines()
    for before, line in zip(["", *lines], lines, strict=False):
        begins = LIST_ITEM.match(line) and not LIST_ITEM.match(before.lstrip())
        assert not begins or not before.strip() or before.startswith("  "), line


@each_written_page
def test_commands_exist_with_their_flags(page):
    for line in commands(page.read_text()):
        found, rest = command(line.split()[1:])
        assert not isinstance(found, click.Group) or not rest or rest[0].startswith("-"), line
        given = {flag for flag, *_ in FLAG.findall(" ".join(rest))}
        assert given <= flags(found) | {"--help"}, line


@each_written_page
def test_flags_of_ours_exist(page):
    assert set(OWN_FLAG.findall(page.read_text())) <= all_flags()


@each_written_page
def test_metrics_exist(page):
    known = set(METRIC.findall((DOCS / "metrics.md").read_text()))
    for found in METRIC.findall(page.read_text()):
        assert found in known or any(metric.startswith(f"{found}_") for metric in known), found


@each_written_page
def test_alerts_and_events_exist(page):
    alerts = {path.stem for path in (DOCS / "runbooks" / "alerts").glob("Vgpu*.md")}
    assert set(ALERT.findall(page.read_text())) <= alerts | set(map(str, Word))

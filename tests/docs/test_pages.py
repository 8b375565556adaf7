"""What the pages name is there: links, commands, flags, metrics and alerts."""

import re

import pathspec

from deviceplugin.apiserver.writes import EventReason
from grafana import recording
from scheduler.verbs.extender import NOT_PLACED
from tests.support.defects import no_defects
from tests.support.doc_pages import (
    BLOCK,
    METRIC,
    all_flags,
    anchors,
    links,
    wrong_words,
)
from tests.support.environment import ROOT
from vgpu.program.exporter_pod import port_forward

DOCS = ROOT / "docs"
PAGES = {
    str(page.relative_to(ROOT)): page.read_text()
    for page in sorted([*DOCS.rglob("*.md"), *(ROOT / "deploy").rglob("*.md"), *ROOT.glob("*.md")])
}
WRITTEN = {name: text for name, text in PAGES.items() if "<!-- Generated" not in text[:20]}

OWN_FLAG = re.compile(r"(?<![\w-])--[a-z]+\.[a-z][a-z.-]*[a-z]")
"""A flag with a dot in its name is one of ours; the originals' have none."""

PROMETHEUS_FLAGS = {"--config.file", "--storage.tsdb.path"}

ALERT = re.compile(r"\bVgpu[A-Z]\w+")
LINKED = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)")
VAGUE = re.compile(
    r"above|all|at each step|below|each|explained|here|how|its \w+|link|measured|more|page|that"
    r"|there|this|what.*|why.*|.*'s",
    re.IGNORECASE,
)
LESS_INDENTED = re.compile(r"(?:^|\n)\n {1,3}(?:```|\||[A-Z`]).*")
LIST_ITEM = re.compile(r"(- |\d+\. )")


@no_defects
def test_links_lead_to_files_and_headings():
    for name, text in PAGES.items():
        page = ROOT / name
        for link in links(text):
            target, _, anchor = link.partition("#")
            there = page.parent / target if target else page
            if not there.exists():
                yield f"{name}: no file {link}"
            elif anchor and anchor not in set(anchors(there.read_text())):
                yield f"{name}: no heading {link}"


@no_defects
def test_a_link_has_the_name_of_its_target():
    """No file name, which a site does not have, and no word that means nothing by itself."""
    for name, text in PAGES.items():
        for words, link in LINKED.findall(BLOCK.sub("", text)):
            is_file = words.endswith(".md") and "/" not in words
            if VAGUE.fullmatch(words) or is_file:
                yield f"{name}: [{words}]({link})"


@no_defects
def test_a_list_begins_after_an_empty_line_or_the_site_shows_none():
    for name, text in PAGES.items():
        lines = BLOCK.sub("", text).splitlines()
        for before, line in zip(["", *lines], lines, strict=False):
            begins = LIST_ITEM.match(line) and not LIST_ITEM.match(before.lstrip())
            if begins and before.strip() and not before.startswith("  "):
                yield f"{name}: {line}"


@no_defects
def test_a_block_in_a_list_is_indented_by_four_spaces_or_the_site_ends_the_list():
    for name, text in PAGES.items():
        for found in LESS_INDENTED.finditer(text):
            yield f"{name}: {found[0].strip()}"


@no_defects
def test_commands_exist_with_their_flags():
    for name, text in WRITTEN.items():
        for wrong in wrong_words(text, help_is_a_flag=True):
            yield f"{name}: {wrong}"


@no_defects
def test_flags_of_ours_exist():
    known = all_flags() | PROMETHEUS_FLAGS
    for name, text in WRITTEN.items():
        for flag in set(OWN_FLAG.findall(text)) - known:
            yield f"{name}: {flag}"


@no_defects
def test_metrics_exist():
    known = set(METRIC.findall(PAGES["docs/metrics.md"]))
    known |= {rule.name.split(":")[1] for group in recording.GROUPS for rule in group.rules}
    for name, text in WRITTEN.items():
        for found in set(METRIC.findall(text)) - known:
            if not any(metric.startswith(f"{found}_") for metric in known):
                yield f"{name}: {found}"


@no_defects
def test_alerts_and_events_exist():
    alerts = {path.stem for path in (DOCS / "runbooks" / "alerts").glob("Vgpu*.md")}
    events = {*map(str, EventReason), NOT_PLACED}
    for name, text in WRITTEN.items():
        for found in set(ALERT.findall(text)) - alerts - events:
            yield f"{name}: {found}"


def test_the_dump_for_support_has_what_each_command_reads():
    page = PAGES["docs/first-commands.md"]
    kinds = re.search(r"^\$ kubectl get (\S+) -A -o json > dump\.json$", page, re.MULTILINE)[1]
    wanted = {"nodes", "pods", "namespaces", "resourcequotas", "daemonsets", "configmaps"}
    assert wanted <= set(kinds.split(","))


def test_the_site_has_no_bytecode():
    """Python leaves some beside the site's own module, docs/site_hooks.py."""
    left_out = re.search(
        r"^exclude_docs: \|\n((?:  .*\n)+)", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE
    )
    lines = [line.strip() for line in left_out[1].splitlines()]
    rules = pathspec.GitIgnoreSpec.from_lines(lines)
    assert rules.match_file("__pycache__/site_hooks.cpython-311.pyc")
    assert not rules.match_file("faq.md")


@no_defects
def test_a_runbook_that_names_the_exporters_page_has_the_line_that_opens_it():
    for name, text in PAGES.items():
        of_alert = name.startswith("docs/runbooks/alerts/Vgpu")
        names_page = re.search(r"status page|:9394", text)
        if of_alert and names_page and port_forward("NODE") not in text:
            yield name

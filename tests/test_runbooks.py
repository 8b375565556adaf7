"""The runbooks and the reconciler's page say what is there: rules, reasons, flags, keys, links."""

import re
from collections import Counter
from pathlib import Path

import click
import pytest

from reconciler.apply.restore import Undo
from reconciler.config import KEYS, SECTIONS
from reconciler.cycle import Ending
from reconciler.policy import Ages, Mode
from reconciler.reasons import Cause, Effect, Outcome, Rule, Skip
from reconciler.rules import RULES
from reconciler.schedule import Missed
from tests.support.doc_pages import FLAG, METRIC, command, commands, flags, spans
from tests.support.environment import ROOT

DOCS = ROOT / "docs"
RUNBOOKS = DOCS / "runbooks"
PAGES = sorted(page for page in RUNBOOKS.glob("*.md") if page.name != "README.md")
ALL = [*PAGES, DOCS / "reconcile.md"]

HEADINGS = ["What it means", "What the reconciler did", "What to do next", "How to turn it off"]

WORDS = {
    word.value
    for words in (Rule, Cause, Effect, Skip, Outcome, Undo, Ending, Missed, Mode)
    for word in words
}
KEY_NAMES = {key.name for key in KEYS} | {key.name.rpartition(".")[2] for key in KEYS}

ROW = re.compile(r"^\| `(\w+)` \|", re.MULTILINE)
WORD = re.compile(r"[a-z]+(_[a-z]+)+")
DOTTED = re.compile(rf"({'|'.join(SECTIONS)})\.[a-z_.]+")
SECONDS = re.compile(r"(?<![\d.,])(\d+) s\b")
OPT_OUT = 'vgpu.dev/reconcile: "false"'


def name(page: Path) -> str:
    return page.stem


@pytest.fixture(params=PAGES, ids=name)
def page(request):
    return request.param


@pytest.fixture(params=ALL, ids=name)
def text(request):
    return request.param.read_text()


OWN_FLAGS = set().union(
    *(flags(command(["reconcile", each])[0]) for each in ("plan", "apply", "run"))
)


# ---------------------------------------------------------------- a page for each rule


def test_each_rule_has_a_page_and_each_page_a_rule():
    assert [entry.rule for entry in RULES] == list(Rule)
    assert {page.stem for page in PAGES} == set(map(str, Rule))


def test_a_page_begins_with_its_rule_and_has_all_headings(page):
    lines = page.read_text().splitlines()
    assert lines[0] == f"# {page.stem}"
    assert [line.removeprefix("## ") for line in lines if line.startswith("## ")] == HEADINGS


def test_each_reason_code_is_on_the_page_of_its_rule_alone():
    told = Counter(cause for page in PAGES for cause in ROW.findall(page.read_text()))
    assert told.pop(Cause.MALFORMED) > 1  # any rule may say so
    assert told == Counter(dict.fromkeys(set(Cause) - {Cause.MALFORMED}, 1))


def test_a_page_says_how_to_turn_its_rule_and_one_subject_off(page):
    last = page.read_text().rpartition("## How to turn it off")[2]
    assert f"--rule {page.stem}=off" in last
    assert OPT_OUT in " ".join(last.split()) or page.stem == Rule.ORPHAN_SHIM_DIR


def test_times_are_those_of_the_policy(page):
    known = {getattr(Ages(), field) for field in Ages.__struct_fields__}
    assert {float(number) for number in SECONDS.findall(page.read_text())} <= known


# ---------------------------------------------------------------- nothing that is not there


def test_words_that_look_like_reasons_are_reasons(text):
    found = {span for span in spans(text) if WORD.fullmatch(span) and not METRIC.match(span)}
    assert found <= WORDS | KEY_NAMES


def test_commands_exist_with_their_flags(text):
    for line in commands(text):
        words = line.split()[1:]
        found, rest = command(words)
        assert not isinstance(found, click.Group) or not rest, line
        assert {flag for flag, *_ in FLAG.findall(" ".join(rest))} <= flags(found), line


def test_flags_that_stand_alone_are_the_reconcilers(text):
    for span in spans(text):
        if span.startswith("--"):
            for flag, joined, spaced in FLAG.findall(span):
                assert flag in OWN_FLAGS, span
                if flag == "--rule" and "=" in (joined or spaced):
                    rule, _, mode = (joined or spaced).partition("=")
                    assert rule in set(map(str, Rule)), span
                    assert mode in set(map(str, Mode)), span


def test_keys_of_the_configuration_exist(text):
    found = {span for span in spans(text) if DOTTED.fullmatch(span)}
    assert found <= {key.name for key in KEYS}


def test_metrics_exist(text):
    known = set(METRIC.findall((DOCS / "metrics.md").read_text()))
    for found in METRIC.findall(text):
        assert found in known or any(metric.startswith(f"{found}_") for metric in known), found

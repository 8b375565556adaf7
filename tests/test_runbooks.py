"""The runbooks and the reconciler's page say what is there: rules, reasons, flags, keys, links."""

import re
from collections import Counter

from reconciler.apply.restore import Undo
from reconciler.config.settings import KEYS, SECTIONS
from reconciler.cycle import Ending
from reconciler.policy import Ages, Mode
from reconciler.reasons import ActionOutcome, Cause, Effect, Rule, SkipReason
from reconciler.rules import RULES
from reconciler.schedule import Missed
from tests.support.defects import no_defects
from tests.support.doc_pages import FLAG, METRIC, command, flags, spans, wrong_words
from tests.support.environment import ROOT

DOCS = ROOT / "docs"
RUNBOOKS = DOCS / "runbooks"
PAGES = {
    page.stem: page.read_text()
    for page in sorted(RUNBOOKS.glob("*.md"))
    if page.name != "README.md"
}
ALL = PAGES | {"reconcile": (DOCS / "reconcile.md").read_text()}

HEADINGS = ["What it means", "What the reconciler did", "What to do next", "How to turn it off"]

WORDS = {
    word.value
    for words in (Rule, Cause, Effect, SkipReason, ActionOutcome, Undo, Ending, Missed, Mode)
    for word in words
}
KEY_NAMES = {key.name for key in KEYS} | {key.name.rpartition(".")[2] for key in KEYS}

ROW = re.compile(r"^\| `(\w+)` \|", re.MULTILINE)
WORD = re.compile(r"[a-z]+(_[a-z]+)+")
DOTTED = re.compile(rf"({'|'.join(SECTIONS)})\.[a-z_.]+")
SECONDS = re.compile(r"(?<![\d.,])(\d+) s\b")
OPT_OUT = 'vgpu.dev/reconcile: "false"'


OWN_FLAGS = set().union(
    *(flags(command(["reconcile", each])[0]) for each in ("plan", "apply", "run"))
)


# ---------------------------------------------------------------- a page for each rule


def test_each_rule_has_a_page_and_each_page_a_rule():
    assert [entry.rule for entry in RULES] == list(Rule)
    assert PAGES.keys() == set(map(str, Rule))


@no_defects
def test_a_page_begins_with_its_rule_and_has_all_headings():
    for name, text in PAGES.items():
        first, *lines = text.splitlines()
        if first != f"# {name}":
            yield f"{name}: begins with {first}"
        headings = [line.removeprefix("## ") for line in lines if line.startswith("## ")]
        if headings != HEADINGS:
            yield f"{name}: has the headings {headings}"


def test_each_reason_code_is_on_the_page_of_its_rule_alone():
    causes = Counter(cause for text in PAGES.values() for cause in ROW.findall(text))
    assert causes.pop(Cause.MALFORMED) > 1  # any rule may say so
    assert causes == Counter(dict.fromkeys(set(Cause) - {Cause.MALFORMED}, 1))


@no_defects
def test_a_page_explains_how_to_turn_its_rule_off_for_one_object():
    for name, text in PAGES.items():
        last = " ".join(text.rpartition("## How to turn it off")[2].split())
        if f"--rule {name}=off" not in last:
            yield f"{name}: not how the rule is turned off"
        if OPT_OUT not in last and name != Rule.ORPHAN_SHIM_DIR:
            yield f"{name}: not how a subject is skipped"


@no_defects
def test_times_are_those_of_the_policy():
    known = {getattr(Ages(), field) for field in Ages.__struct_fields__}
    for name, text in PAGES.items():
        for number in set(map(float, SECONDS.findall(text))) - known:
            yield f"{name}: {number:g} s"


# ---------------------------------------------------------------- nothing that is not there


@no_defects
def test_words_that_look_like_reasons_are_reasons():
    for name, text in ALL.items():
        found = {span for span in spans(text) if WORD.fullmatch(span) and not METRIC.match(span)}
        for word in found - WORDS - KEY_NAMES:
            yield f"{name}: {word}"


@no_defects
def test_commands_exist_with_their_flags():
    for name, text in ALL.items():
        for wrong in wrong_words(text, help_is_a_flag=False):
            yield f"{name}: {wrong}"


@no_defects
def test_flags_that_stand_alone_are_the_reconcilers():
    for name, text in ALL.items():
        for span in (span for span in spans(text) if span.startswith("--")):
            for flag, joined, spaced in FLAG.findall(span):
                if flag not in OWN_FLAGS:
                    yield f"{name}: no flag {span}"
                rule, given, mode = (joined or spaced).partition("=")
                if (
                    flag == "--rule"
                    and given
                    and (rule not in list(Rule) or mode not in list(Mode))
                ):
                    yield f"{name}: no rule or no mode: {span}"


@no_defects
def test_keys_of_the_configuration_exist():
    for name, text in ALL.items():
        found = {span for span in spans(text) if DOTTED.fullmatch(span)}
        for key in found - {key.name for key in KEYS}:
            yield f"{name}: {key}"

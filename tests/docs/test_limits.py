"""docs/limits.md: each state, way of limiting and reason, and a remedy with a command for each."""

import re
from pathlib import Path

from tests.support.defects import no_defects
from tests.support.environment import ROOT
from vgpu.ledger.limit_verdict import LimitReason, LimitState
from vgpu.schemes.limit_ways import LIBRARIES, WAYS
from vgpu.schemes.registry import registry
from vgpu.schemes.volcano.env import MEMORY_LIMIT

PAGE = Path(ROOT, "docs/limits.md").read_text()
SECTIONS = dict(re.findall(r"^### (\w+)\n(.*?)(?=^### |\Z)", PAGE, re.MULTILINE | re.DOTALL))


@no_defects
def test_each_reason_has_its_remedy_with_a_command():
    for reason in LimitReason:
        section = SECTIONS.get(reason.value, "")
        if f"`{reason.state}`: {reason.explanation}." not in section:
            yield f"{reason}: not its state and explanation"
        if not re.search(r"^```console\n\$ \S+", section, re.MULTILINE):
            yield f"{reason}: no command"
    for name in SECTIONS.keys() - {reason.value for reason in LimitReason}:
        yield f"{name}: no reason"


@no_defects
def test_the_remedies_of_libraries_name_the_files_of_each_library():
    for library in LIBRARIES:
        name = library.name.removesuffix(".so")
        for reason in (LimitReason.LIBRARY_COPY, LimitReason.LIBRARY_UNCLEAR):
            if name not in SECTIONS[reason]:
                yield f"{reason}: {name}"
        if not any(folder in SECTIONS[LimitReason.LIBRARY_UNREAD] for folder in library.folders):
            yield f"{LimitReason.LIBRARY_UNREAD}: {library.folders}"
    folders = [files.folder for files in registry().limit_files.values()]
    for source in (MEMORY_LIMIT, *folders):
        if source not in SECTIONS[LimitReason.LIMIT_ZERO]:
            yield f"{LimitReason.LIMIT_ZERO}: {source}"


def test_the_reasons_stand_in_the_order_in_which_they_decide():
    assert [*SECTIONS] == [reason.value for reason in LimitReason]


@no_defects
def test_the_tables_are_those_of_the_code():
    for state in LimitState:
        if f"| `{state}` | {state.explanation} |" not in PAGE:
            yield str(state)
    for way in WAYS:
        row = f"| {way.name} | {way.proves} | {way.disproves} | {way.unknown or '–'} |"
        if row not in PAGE:
            yield way.name

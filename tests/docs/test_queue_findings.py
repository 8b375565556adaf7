"""The page of the findings of queues: one chapter for each reason, with a command."""

import re

from tests.support.defects import no_defects
from tests.support.environment import ROOT
from vgpu.quota.queue_findings import QueueFinding
from vgpucli.doctor.model import DoctorReason

PAGE = (ROOT / "docs" / "queue-findings.md").read_text()
OF_DOCTOR = (DoctorReason.KUEUE_AWAY, DoctorReason.KUEUE_COUNTS_ONCE)


def chapters():
    """The text of each chapter by its reason."""
    parts = re.split(r"^## `(\w+)`$", PAGE, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_each_reason_has_a_chapter_and_a_row_with_its_own_sentence():
    own = {reason.value for reason in QueueFinding}
    assert chapters().keys() == own | {reason.value for reason in OF_DOCTOR}
    rows = re.findall(r"^\| \[`(\w+)`\]\(#\w+\) \| (.*) \|$", PAGE, flags=re.MULTILINE)
    assert rows == [(reason.value, reason.explanation) for reason in QueueFinding]


@no_defects
def test_each_chapter_has_a_meaning_and_a_command():
    for name, text in chapters().items():
        if "**What it means.**" not in text:
            yield f"{name}: no meaning"
        todo = text.partition("**What to do.**")[2]
        if not re.search(r"`(?:kubectl|vgpu) [^`]+`", todo):
            yield f"{name}: no command"

"""The report of `vgpu doctor` and its exit status."""

from typing import Final

from vgpu.commands.doctor_document import document
from vgpu.commands.doctor_table import show
from vgpu.commands.document_output import print_document
from vgpu.doctor.model import Diagnosis, Severity
from vgpu.terminal import standard_output

EXIT_ERRORS: Final = 3
"""Exit status if a finding is an error."""


def report(diagnosis: Diagnosis, output: str) -> int:
    """Print the diagnosis as ``text`` or ``json``; returns the exit status."""
    if output == "json":
        print_document(document(diagnosis), "json")
    else:
        show(standard_output(), diagnosis)
    return EXIT_ERRORS if diagnosis.count(Severity.ERROR) else 0

"""The report of `vgpu doctor` and its exit status."""

from typing import Final

from vgpu.program.terminal import standard_output
from vgpucli.doctor.document import document
from vgpucli.doctor.model import Diagnosis, Severity
from vgpucli.doctor.table import show
from vgpucli.document_output import print_document

EXIT_ERRORS: Final = 3
"""Exit status if a finding is an error."""


def report(diagnosis: Diagnosis, output: str) -> int:
    """Print the diagnosis as ``text`` or ``json``; returns the exit status."""
    if output == "json":
        print_document(document(diagnosis), "json")
    else:
        show(standard_output(), diagnosis)
    return EXIT_ERRORS if diagnosis.count(Severity.ERROR) else 0

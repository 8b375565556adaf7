"""How commands print a document.

Apart from :mod:`vgpu.program.output`, so that a help text does not wait for msgspec.
"""

import msgspec

from vgpu.model.document_text import json_text, yaml_text
from vgpu.program.output import say_text


def print_document(document: msgspec.Struct, output: str) -> None:
    """Print the document as ``json`` or ``yaml``."""
    say_text(f"{json_text(document)}\n" if output == "json" else yaml_text(document))

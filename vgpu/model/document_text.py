"""Documents as JSON and YAML, in printable characters: others are escapes.

decode(json_text(document)) == decode(yaml_text(document)) == document
"""

from typing import Any

import msgspec

from vgpu.model.printable_text import escaped_json, is_printable


def json_text(document: Any) -> str:
    """A document as indented JSON, without a line break at the end."""
    return escaped_json(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())


def yaml_text(document: Any) -> str:
    """A document as YAML, with a line break at the end.

    YAML's own form of a time is not RFC 3339, and Go's parsers refuse it: a time is a text.
    """
    values = msgspec.to_builtins(document)
    text = msgspec.yaml.encode(values).decode()
    if is_printable(text):
        return text
    import yaml  # noqa: PLC0415  # msgspec, too, imports it only where it is needed

    ascii_text: str = yaml.safe_dump(values, sort_keys=False, allow_unicode=False, width=2**31)
    return ascii_text

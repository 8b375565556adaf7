"""How commands print a document."""

import click
import msgspec


def print_document(document: msgspec.Struct, output: str) -> None:
    """Print the document as ``json`` or ``yaml``."""
    if output == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(document), indent=2))
    else:
        # YAML's own form of a time is not RFC 3339, and Go's parsers refuse it.
        click.echo(msgspec.yaml.encode(msgspec.to_builtins(document)), nl=False)

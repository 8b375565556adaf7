"""Completion of the values of flags: what a shell offers at Tab, by the flag's metavar.

A flag with a type of its own, such as a choice, completes by its type.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import click
from click.shell_completion import CompletionItem

from vgpu.program import cluster_names

Offer = Callable[[click.Context, click.Parameter, str], list[str]]
"""The words that a shell offers for the beginning of a value."""

NAMES: Final[Mapping[str, Offer]] = {
    "NAMESPACE": cluster_names.namespaces,
    "PLAN-NAMESPACE": cluster_names.namespaces,
    "NODE": cluster_names.nodes,
}
"""Metavars of the cluster's objects."""

PATHS: Final = {"FILE": "file", "AUDIT": "file", "SOCKET": "file", "DIR": "dir", "FOLDER": "dir"}
"""Metavars of paths, and what the shell itself offers for each."""


class OfferedText(click.types.StringParamType):
    """Text for which a shell offers words."""

    def __init__(self, offer: Offer) -> None:
        self._offer = offer

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """The words."""
        return [CompletionItem(word) for word in self._offer(ctx, param, incomplete)]


class _PathText(click.types.StringParamType):
    """Text for which the shell offers paths."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def shell_complete(
        self,
        ctx: click.Context,  # noqa: ARG002  # click's signature
        param: click.Parameter,  # noqa: ARG002
        incomplete: str,
    ) -> list[CompletionItem]:
        """The beginning of the path, and what kind of file it has to be."""
        return [CompletionItem(incomplete, type=self._kind)]


def words(*choices: str) -> OfferedText:
    """Text that may be one of these words."""
    return OfferedText(lambda _, __, start: [word for word in choices if word.startswith(start)])


def with_values(command: click.Command) -> click.Command:
    """The command whose flags, and those of its own commands, complete their values."""
    for each in _all_commands(command):
        for parameter in each.params:
            metavar = parameter.metavar or ""
            if parameter.type is not click.STRING:
                continue
            if metavar in PATHS:
                parameter.type = _PathText(PATHS[metavar])
            elif metavar in NAMES:
                parameter.type = OfferedText(NAMES[metavar])
    return command


def _all_commands(command: click.Command) -> Iterator[click.Command]:
    yield command
    if isinstance(command, click.Group):
        ctx = click.Context(command)
        for name in command.list_commands(ctx):
            below = command.get_command(ctx, name)
            if below is not None:
                yield from _all_commands(below)

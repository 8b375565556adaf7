"""Groups of commands that read their words in any order: `vgpu explain --from dump pod a/b`."""

from collections.abc import Iterator, Sequence
from typing import Final

import click
from click.shell_completion import CompletionItem

_TYPED: Final = "vgpu.program.groups.typed"
"""The words before a command that is not typed yet, among a context's ``meta``."""


class FlagsFirstGroup(click.Group):
    """A group whose command may stand behind the command's own flags."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the command's name first, as click wants it."""
        at = self._command_at(ctx, args)
        if ctx.resilient_parsing and not at and args and args[0].startswith("-"):
            ctx.meta[_TYPED], args = args, []
        return super().parse_args(ctx, [args[at], *args[:at], *args[at + 1 :]] if at else args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The commands; the commands' flags, and the value of a flag before its command."""
        typed = ctx.meta.get(_TYPED, [])
        if typed and dict(self._options()).get(typed[-1]):
            for name, command in self.commands.items():
                for parameter in command.params:
                    if typed[-1] in parameter.opts:
                        with self.context_of(ctx, name, typed[:-1]) as own:
                            return parameter.shell_complete(own, incomplete)
        items = super().shell_complete(ctx, incomplete)
        if incomplete.startswith("-"):
            known = {item.value for item in items}
            names = dict.fromkeys(name for name, _ in self._options())
            items += [
                CompletionItem(name)
                for name in names
                if name.startswith(incomplete) and name not in known
            ]
        return items

    def context_of(
        self, ctx: click.Context, name: str, typed: Sequence[str] | None = None
    ) -> click.Context:
        """The context of a command as if its name stood before the flags that are typed."""
        args = [*(ctx.meta.get(_TYPED, []) if typed is None else typed)]
        return self.commands[name].make_context(name, args, ctx, resilient_parsing=True)

    def _command_at(self, ctx: click.Context, args: Sequence[str]) -> int:
        """The index of the first word that is neither a flag nor a flag's value; 0 without one."""
        takes_value = dict(self._options())
        own = {name for parameter in self.get_params(ctx) for name in parameter.opts}
        index = 0
        while index < len(args):
            word = args[index]
            if not word.startswith("-") or word == "-":
                return index
            name, equals, _ = word.partition("=")
            attached = not word.startswith("--") and len(word) > 2
            name = word[:2] if attached else name
            if name in own or name not in takes_value:
                return 0
            index += 2 if takes_value[name] and not equals and not attached else 1
        return 0

    def _options(self) -> Iterator[tuple[str, bool]]:
        """Each flag of the commands, and whether a word follows it."""
        for command in self.commands.values():
            for parameter in command.params:
                if isinstance(parameter, click.Option):
                    for name in (*parameter.opts, *parameter.secondary_opts):
                        yield name, not parameter.is_flag and not parameter.count

"""`vgpu help`: the help of a command, for those who type it before the command."""

import click


@click.command("help", epilog="Example: vgpu help explain pod")
@click.argument("words", nargs=-1, metavar="[COMMAND]...")
@click.pass_context
def command(ctx: click.Context, words: tuple[str, ...]) -> None:
    """Print what 'vgpu COMMAND --help' prints, or the list of commands."""
    root = ctx.find_root()
    root.command.main([*words, "--help"], prog_name=root.info_name, standalone_mode=False)

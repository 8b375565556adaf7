"""`vgpu completion`: the script by which a shell completes vgpu's commands and flags."""

from typing import Final

import click
from click.shell_completion import get_completion_class

from vgpu.program.output import say_document

SHELLS: Final = ("bash", "zsh", "fish")

PROGRAM: Final = "vgpu"

_VARIABLE: Final = "_VGPU_COMPLETE"
"""The variable in which click, by its own rule, expects the shell's request."""

EPILOG: Final = """\
\b
For good:
  bash   vgpu completion bash > ~/.local/share/bash-completion/completions/vgpu
  zsh    vgpu completion zsh > ~/.zfunc/_vgpu     (with fpath+=~/.zfunc before compinit)
  fish   vgpu completion fish > ~/.config/fish/completions/vgpu.fish

\b
For this shell only:
  source <(vgpu completion bash)
"""


@click.command("completion", epilog=EPILOG, context_settings={"max_content_width": 100})
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the script by which SHELL completes vgpu's commands and flags, and names of the
    cluster: namespaces, pods, nodes.
    """
    completion = get_completion_class(shell)
    if completion is None:  # a click without one of the shells that it has had since 8.0
        raise click.ClickException(f"click knows no completion for {shell}")
    root = ctx.find_root().command
    say_document(f"{completion(root, {}, PROGRAM, _VARIABLE).source()}\n")

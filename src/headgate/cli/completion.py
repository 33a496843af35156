"""`headgate completion`: what a shell needs to complete commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from headgate.cli.terminal.say import say


@click.command(name="completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print the completion script of a shell.

    \b
    bash:  headgate completion bash > ~/.local/share/bash-completion/completions/headgate
    zsh:   headgate completion zsh > ~/.zfunc/_headgate    (with ~/.zfunc in fpath, before compinit)
    fish:  headgate completion fish > ~/.config/fish/completions/headgate.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None, "click knows the three shells"
    say(kind(context.find_root().command, {}, "headgate", "_HEADGATE_COMPLETE").source())

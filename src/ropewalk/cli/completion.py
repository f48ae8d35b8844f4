"""`ropewalk completion`: completion scripts of shells, and the values they complete."""

from __future__ import annotations

import click

from ropewalk.cli.common.command import command

VARIABLE = "_ROPEWALK_COMPLETE"


@command(
    "completion",
    "source <(ropewalk completion bash)",
    "ropewalk completion zsh > ~/.zfunc/_ropewalk",
    "ropewalk completion fish > ~/.config/fish/completions/ropewalk.fish",
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of SHELL: commands, options, namespaces, topics, channels and groups."""
    from click.shell_completion import get_completion_class

    from ropewalk.cli.main import root

    made = get_completion_class(shell)
    assert made is not None
    script = made(root, {}, "ropewalk", VARIABLE)
    # bash asks itself for its version when the class makes its script; the script alone does not need that.
    click.echo(script.source_template % script.source_vars())

"""The `lachesis` command: loads each sub-command only when it is called, so that `--help` stays quick."""

from __future__ import annotations

import importlib
import sys

import click

from lachesis_py import __version__
from lachesis_py.errors import LachesisError

COMMANDS = {
    "engine": "lachesis_py.cli.engine:engine",
}


class LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        target = COMMANDS.get(cmd_name)
        if target is None:
            return None
        module, _, attribute = target.partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="lachesis")
def cli() -> None:
    """Schedules the threads of stream processing engines from outside."""


def main() -> None:
    try:
        cli(standalone_mode=True)
    except LachesisError as error:
        click.echo(f"lachesis: {error}", err=True)
        sys.exit(error.exit_code)

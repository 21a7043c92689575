"""The command line. torch is imported only by the commands that need it, so that `cflag --help` is instant."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from cflag.cipher import use_key
from cflag.commands import experiments, export, fleet, inspect, memory, paper, predict
from cflag.errors import CflagError, UserError, unknown
from cflag.registry import load_plugins


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; a person's mistake ends in one line and an exit code, not in a traceback."""
    words, commands = sys.argv[1:] if argv is None else list(argv), parser()
    if not words:
        commands.print_help()
        return UserError.exit_code
    try:
        _know(commands, words[0])
        args = commands.parse_args(words)
        if getattr(args, "state_key", None) is not None:
            use_key(args.state_key)
        load_plugins(args.plugin)
        args.command(args)
        sys.stdout.flush()
    except CflagError as error:
        print(f"cflag: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("cflag: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output went away, as `head` does
        _give_up_output()
    except OSError as error:
        print(f"cflag: {error.filename or 'output'}: {error.strerror}", file=sys.stderr)
        if error.filename is None:
            _give_up_output()
        return 1
    return 0


def _know(parser: argparse.ArgumentParser, command: str) -> None:
    """Refuse a command that there is not, with the one that it looks like; argparse would list them all."""
    (action,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    if not command.startswith("-") and command not in action.choices:
        raise unknown("command", command, action.choices)


def _give_up_output() -> None:
    """Let what is left of the output go nowhere, or Python would complain about it once more when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = argparse.ArgumentParser(prog="cflag", description="Continual federated learning with C-FLAG.")
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    experiments.add_run(commands)
    experiments.add_compare(commands)
    experiments.add_tune(commands)
    fleet.add_fleet(commands)
    paper.add_reproduce(commands)
    paper.add_ledger(commands)
    inspect.add_watch_and_report(commands)
    export.add_export(commands)
    predict.add_predict(commands)
    memory.add_memory(commands)
    paper.add_theory(commands)
    inspect.add_lists(commands)
    _add_plugin_option(parser)
    return parser


def _add_plugin_option(parser: argparse.ArgumentParser) -> None:
    """Let every command take --plugin: those that have commands of their own pass it on to them."""
    inner = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    for action in inner:
        for command in action.choices.values():
            _add_plugin_option(command)
    if not inner:
        parser.add_argument("--plugin", action="append", default=[], metavar="FILE",
                            help="a Python file that registers methods, sources and other parts")  # fmt: skip


class _Version(argparse.Action):
    """Looks the version up only when asked."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        import cflag

        print(f"cflag {cflag.__version__}")
        parser.exit()

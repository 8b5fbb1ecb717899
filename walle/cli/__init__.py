"""The `walle` command. Every sub-command has `--help` and `--json`, and an error says what to do next.

`walle --verbose COMMAND` also writes what walle logs, and the traceback of an error, on standard error.
"""

import importlib
import sys
from typing import Annotated

import typer

from walle.base.extras import install_hint
from walle.cli.help_text import show_help_as_written
from walle.cli.output import fail
from walle.cli.verbose import log_to_stderr
from walle.cli.version import version_lines
from walle.errors import ConfigError, WalleError

app = typer.Typer(
    name="walle",
    help="Ship machine-learning tasks to fleets of devices, and let devices and cloud work on them together.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(is_asked: bool) -> None:
    if is_asked:
        print("\n".join(version_lines()))
        raise typer.Exit


@app.callback()
def walle(
    context: typer.Context,
    verbose: Annotated[  # `fail` looks for it too
        bool, typer.Option("--verbose", help="Log to standard error, with tracebacks of errors; before the command.")
    ] = False,
    version: Annotated[  # noqa: ARG001 - its callback ends the program
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version, the engine's build, and exit."
        ),
    ] = False,
) -> None:
    """Ship machine-learning tasks to fleets of devices, and let devices and cloud work on them together."""
    if verbose:
        context.with_resource(log_to_stderr())


# Each module registers its commands on `app`. A command imports what it needs when it runs, so that
# `walle device run` works with the device's packages only.
_COMMANDS = (
    "demo", "task", "release", "access.sign", "access.trust", "cloud", "access.login",
    "access.token", "access.group", "device", "release.attributes", "release.device_file", "cloud.storage",
    "features", "model", "adapt", "access.audit", "figures",
)  # fmt: skip
for _name in _COMMANDS:
    importlib.import_module(f"walle.cli.{_name}").register(app)
show_help_as_written(app)


def main() -> None:
    """Run the command line; exit status 1 for a WalleError, 2 for wrong usage, 130 for Ctrl-C."""
    try:
        app(standalone_mode=True)
    except WalleError as error:
        sys.exit(fail(error))
    except KeyboardInterrupt:
        sys.exit(130)
    except ModuleNotFoundError as error:
        if error.name and not error.name.startswith("walle"):
            sys.exit(fail(WalleError(f"this command needs {error.name}; install it with: {install_hint('cloud')}")))
        raise
    except OSError as error:
        if error.filename is None:
            raise
        sys.exit(fail(ConfigError(f"{error.filename}: {error.strerror}")))

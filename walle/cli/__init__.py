"""The `walle` command. Every sub-command has `--help` and `--json`, and an error says what to do next."""

import importlib
import sys

import typer

from walle.cli.output import fail
from walle.errors import ConfigError, WalleError

app = typer.Typer(
    name="walle",
    help="Ship machine-learning tasks to fleets of devices, and let devices and cloud work on them together.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

# Each module registers its commands on `app`. A command imports what it needs when it runs, so that
# `walle device run` works with the device's packages only.
for _name in ("demo", "task", "release", "cloud", "device", "features", "model", "figures"):
    importlib.import_module(f"walle.cli.{_name}").register(app)


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
            sys.exit(fail(WalleError(f"this command needs {error.name}; install it with: pip install 'walle[cloud]'")))
        raise
    except OSError as error:
        if error.filename is None:
            raise
        sys.exit(fail(ConfigError(f"{error.filename}: {error.strerror}")))

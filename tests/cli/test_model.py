"""`walle model` and `walle operators`, on a small model that is written here."""

import json
import struct
from array import array
from pathlib import Path
from typing import Any

import numpy
import pytest
from typer.testing import CliRunner

from walle.cli import app
from walle.cli.model import InputError, read_npy
from walle.errors import ConfigError, EngineError


def run(*arguments: object) -> Any:
    """Return the JSON that a command prints; its errors are raised."""
    result = CliRunner().invoke(app, [*map(str, arguments), "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)

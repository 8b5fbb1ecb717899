"""Models and classes that a file of goals names: "net.py:make", "net.onnx", "net.walle"."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

from walle import nn
from walle.adapt.dataset import call_function
from walle.errors import ConfigError


def load_model(source: str, folder: Path) -> nn.Module:
    """Return the model: what a function of a Python file returns, or a file's, of which all weights are trained.

    Raises:
        ConfigError: the file or function does not exist, or gives no model.
        EngineError: a model's file is broken.
    """
    path, _, function = source.partition(":")
    if function:
        model = call_function(folder / path, function, source)
        if not isinstance(model, nn.Module):
            raise ConfigError(f"{source} returns {type(model).__name__}; it takes a walle.nn.Module")
        return model
    if not path.endswith((".onnx", ".walle")):
        raise ConfigError(f"model {source!r}: give FILE.py:FUNCTION, a .onnx or a .walle file")
    if not (folder / path).is_file():
        raise ConfigError(f"model {source!r}: {folder / path} does not exist")
    return nn.from_onnx(str(folder / path), trainable=["*"])


def read_name(source: str, folder: Path, what: str) -> Any:
    """Return what a Python file has under a name, "file.py:name".

    Raises:
        ConfigError: the file or name does not exist; `what` begins the message.
    """
    path, _, name = source.partition(":")
    if not name:
        raise ConfigError(f"no {what}")
    try:
        return runpy.run_path(str(folder / path))[name]
    except (OSError, KeyError) as error:
        raise ConfigError(f"{what}: {error}") from error

"""Fixtures of the reference apps' tests: a task's modules from its folder, and a graph computed by NumPy."""

import importlib
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest


class NumpyGraph:
    """A substitute for GraphBuilder that computes the graph with NumPy while it is built."""

    def __init__(self, inputs: Mapping[str, Any]) -> None:
        self._inputs = inputs
        self.constants: dict[str, Any] = {}
        self.outputs: dict[str, Any] = {}

    def input(self, name: str, shape: Sequence[int], dtype: str = "float32") -> Any:
        value = np.asarray(self._inputs[name])
        assert value.shape == tuple(shape), f"{name} has shape {value.shape}, the graph takes {shape}"
        assert value.dtype == dtype
        return value

    def constant(self, name: str, value: Any, dtype: str = "float32") -> Any:
        self.constants[name] = np.asarray(value, dtype=dtype)
        return self.constants[name]

    def op(self, op: str, inputs: Sequence[Any], **attributes: Any) -> Any:
        match op, inputs:
            case "Slice", (value, starts, ends, axes):
                cuts = [slice(None)] * value.ndim
                for start, end, axis in zip(starts, ends, axes, strict=True):
                    cuts[axis] = slice(start, end)
                return value[tuple(cuts)]
            case "Sigmoid", (value,):
                return (1 / (1 + np.exp(-value))).astype("float32")
            case "Concat", values:
                return np.concatenate(values, axis=attributes["axis"])
            case "MatMul" | "Add" | "Sub" | "Mul" | "Tanh", _:
                functions = {
                    "MatMul": np.matmul,
                    "Add": np.add,
                    "Sub": np.subtract,
                    "Mul": np.multiply,
                    "Tanh": np.tanh,
                }
                return functions[op](*inputs)
            case _:
                raise AssertionError(f"unexpected operator {op}")

    def output(self, name: str, value: Any) -> None:
        self.outputs[name] = value


@pytest.fixture
def numpy_graph() -> type[NumpyGraph]:
    return NumpyGraph


@pytest.fixture
def load_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., ModuleType]]:
    """Return a function that lays folders over each other and imports the main module of what comes out.

    The task's `walle.np` is NumPy here: it has the names that the task uses, and needs no built engine.
    """
    loaded: set[str] = set()

    def load(*folders: Path) -> ModuleType:
        for name in loaded:
            sys.modules.pop(name, None)
        shutil.rmtree(tmp_path / "task", ignore_errors=True)
        for folder in folders:
            shutil.copytree(folder, tmp_path / "task", dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
        loaded.update(path.stem for path in (tmp_path / "task").glob("*.py"))
        monkeypatch.syspath_prepend(tmp_path / "task")
        monkeypatch.setitem(sys.modules, "walle.np", np)
        monkeypatch.setattr("walle.np", np, raising=False)
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        importlib.invalidate_caches()
        return importlib.import_module("main")

    yield load
    for name in loaded:
        sys.modules.pop(name, None)

"""Recurrent layers: Elman networks, gated recurrent units, long short-term memory."""

from __future__ import annotations

import math

from walle.engine_ext import np
from walle.engine_ext._core import evaluate
from walle.engine_ext.errors import ShapeError
from walle.engine_ext.nn import functional, init
from walle.engine_ext.nn.module import Module
from walle.engine_ext.nn.sizes import check_axes, check_size
from walle.engine_ext.nn.tracing import Parameter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from walle.engine_ext._core import ndarray
    from walle.engine_ext.nn.likes import Values

__all__ = ["GRU", "LSTM", "RNN"]


class _Recurrent(Module):
    """Weights of stacked layers under PyTorch's names ("weight_ih_l0", "weight_hh_l0_reverse"), and their run."""

    op = "RNN"
    gates: tuple[int, ...] = (0,)  # PyTorch's place of each gate, in ONNX's order
    states = 1

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True,
                 batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False, *,
                 dtype: str = "float32") -> None:  # fmt: skip
        super().__init__()
        if num_layers < 1 or hidden_size < 1:
            raise ShapeError(f"{type(self).__name__}: {num_layers} layers of {hidden_size} units; it takes 1 or more")
        self.input_size, self.hidden_size, self.num_layers, self.bias = input_size, hidden_size, num_layers, bias
        self.batch_first, self.dropout, self.bidirectional = batch_first, dropout, bidirectional
        rows = len(self.gates) * hidden_size
        for layer in range(num_layers):
            width = input_size if layer == 0 else hidden_size * self._directions
            for ending in self._endings(layer):
                setattr(self, f"weight_ih_{ending}", Parameter(np.zeros((rows, width), dtype=dtype)))
                setattr(self, f"weight_hh_{ending}", Parameter(np.zeros((rows, hidden_size), dtype=dtype)))
                if bias:
                    setattr(self, f"bias_ih_{ending}", Parameter(np.zeros(rows, dtype=dtype)))
                    setattr(self, f"bias_hh_{ending}", Parameter(np.zeros(rows, dtype=dtype)))
        self.reset_parameters()

    @property
    def _directions(self) -> int:
        return 2 if self.bidirectional else 1

    def _endings(self, layer: int) -> list[str]:
        return [f"l{layer}", f"l{layer}_reverse"][: self._directions]

    def reset_parameters(self) -> None:
        bound = 1 / math.sqrt(self.hidden_size)
        for parameter in self.parameters():
            init.uniform_(parameter, -bound, bound)

    def _run(self, input: Values, first: tuple[Values, ...]) -> tuple[ndarray, tuple[ndarray, ...]]:
        """Return the outputs of the last layer and the last states of all layers, in the input's layout."""
        size = self.input_size
        layout = f"(batch, length, {size})" if self.batch_first else f"(length, batch, {size})"
        layout = f"{layout} or (length, {size})"
        check_axes(input, (2, 3), layout)
        check_size(input, -1, size, layout)
        has_batch = len(input.shape) == 3
        steps = input if has_batch else np.expand_dims(input, 1)
        if has_batch and self.batch_first:
            steps = np.swapaxes(steps, 0, 1)
        if not has_batch:
            first = tuple(np.expand_dims(state, 1) for state in first)
        self._check_states(first, steps.shape[1], has_batch)
        lasts: list[list[ndarray]] = [[] for _ in range(self.states)]
        for layer in range(self.num_layers):
            start, end = layer * self._directions, (layer + 1) * self._directions
            if layer and self.dropout:
                steps = functional.dropout(steps, self.dropout, self.training)
            steps, *states = self._run_layer(steps, layer, [state[start:end] for state in first])
            for kept, state in zip(lasts, states, strict=True):
                kept.append(state)
        last = tuple(np.concatenate(kept, axis=0) if len(kept) > 1 else kept[0] for kept in lasts)
        output: ndarray = np.swapaxes(steps, 0, 1) if has_batch and self.batch_first else steps
        if not has_batch:
            return output[:, 0], tuple(state[:, 0] for state in last)
        return output, last

    def _check_states(self, first: tuple[Values, ...], batch: int, has_batch: bool) -> None:
        wanted = (self.num_layers * self._directions, batch, self.hidden_size)
        for state in first:
            if tuple(state.shape) != wanted:
                shown = wanted if has_batch else (wanted[0], wanted[2])
                raise ShapeError(f"first state of shape {tuple(state.shape)}; it takes {shown}")

    def _run_layer(self, steps: Values, layer: int, first: list[Values]) -> list[ndarray]:
        """Return (length, batch, directions · hidden) and the last states, each (directions, batch, hidden)."""
        endings = self._endings(layer)
        weights = self._stacked([[f"weight_ih_{ending}"] for ending in endings])
        recurrent = self._stacked([[f"weight_hh_{ending}"] for ending in endings])
        pairs = [[f"bias_ih_{ending}", f"bias_hh_{ending}"] for ending in endings]
        biases = self._stacked(pairs) if self.bias else None
        states = [*first, *[None] * (self.states - len(first))]
        inputs = [steps, weights, recurrent, biases, None, *states]
        output, *last = evaluate(self.op, inputs, self._attributes(), 1 + self.states)
        length, directions, batch, hidden = output.shape
        joined = output[:, 0] if directions == 1 else np.transpose(output, (0, 2, 1, 3))
        return [np.reshape(joined, (length, batch, directions * hidden)), *last]

    def _attributes(self) -> dict[str, object]:
        direction = "bidirectional" if self.bidirectional else "forward"
        return {"hidden_size": self.hidden_size, "direction": direction}

    def _stacked(self, names: list[list[str]]) -> ndarray:
        """Return the arrays of each direction with their gates in ONNX's order; the first axis is the direction."""
        size, rows = self.hidden_size, []
        for parts in names:
            arrays = [getattr(self, name) for name in parts]
            if self.gates != tuple(range(len(self.gates))):
                arrays = [np.reshape(array, (len(self.gates), size, *array.shape[1:])) for array in arrays]
                gates = [array[at : at + 1] for array in arrays for at in self.gates]
                joined = np.concatenate(gates, axis=0)
                rows.append(np.reshape(joined, (1, -1, *joined.shape[2:])))
            else:
                rows.append(np.expand_dims(np.concatenate(arrays, axis=0) if len(arrays) > 1 else arrays[0], 0))
        return np.concatenate(rows, axis=0) if len(rows) > 1 else rows[0]

    def extra_repr(self) -> str:
        parts = [f"{self.input_size}, {self.hidden_size}"]
        for name, default in (("num_layers", 1), ("bias", True), ("batch_first", False), ("dropout", 0),
                              ("bidirectional", False)):  # fmt: skip
            if getattr(self, name) != default:
                parts.append(f"{name}={getattr(self, name)}")
        return ", ".join(parts)


class RNN(_Recurrent):
    """Elman network: h' = tanh(weight_ih x + bias_ih + weight_hh h + bias_hh), or relu.

    Input (length, batch, input_size), or with `batch_first` (batch, length, input_size), or without a batch; returns
    the outputs (length, batch, directions · hidden_size) and the last states (layers · directions, batch, hidden_size).
    `dropout` applies between layers in training mode. Weights begin uniform within 1 / sqrt(hidden_size).
    """

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, nonlinearity: str = "tanh",
                 bias: bool = True, batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False, *,
                 dtype: str = "float32") -> None:  # fmt: skip
        if nonlinearity not in {"tanh", "relu"}:
            raise ShapeError(f"RNN: nonlinearity {nonlinearity!r}; it takes 'tanh' or 'relu'")
        super().__init__(input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, dtype=dtype)
        self.nonlinearity = nonlinearity

    def _attributes(self) -> dict[str, object]:
        return {**super()._attributes(), "activations": [self.nonlinearity.capitalize()] * self._directions}

    def forward(self, input: Values, hx: Values | None = None) -> tuple[ndarray, ndarray]:
        output, (last,) = self._run(input, () if hx is None else (hx,))
        return output, last


class GRU(_Recurrent):
    """Gated recurrent unit (Cho et al. 2014), reset gate after the product; shapes as in RNN."""

    op = "GRU"
    gates = (1, 0, 2)  # reset, update, new → update, reset, new

    def _attributes(self) -> dict[str, object]:
        return {**super()._attributes(), "linear_before_reset": 1}

    def forward(self, input: Values, hx: Values | None = None) -> tuple[ndarray, ndarray]:
        output, (last,) = self._run(input, () if hx is None else (hx,))
        return output, last


class LSTM(_Recurrent):
    """Long short-term memory (Hochreiter and Schmidhuber 1997); shapes as in RNN, the state is (hidden, cell)."""

    op = "LSTM"
    gates = (0, 3, 1, 2)  # input, forget, cell, output → input, output, forget, cell
    states = 2

    def forward(self, input: Values,
                hx: tuple[Values, Values] | None = None) -> tuple[ndarray, tuple[ndarray, ndarray]]:  # fmt: skip
        output, (hidden, cell) = self._run(input, () if hx is None else tuple(hx))
        return output, (hidden, cell)

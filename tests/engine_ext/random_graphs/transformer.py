"""Family of random transformers: products, normalisations, attention and the chains that exporters write for them."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.engine_ext.random_graphs.maker import GraphMaker, Unsuitable, numpy_type
from tests.engine_ext.random_graphs.steps import activation, binary, gelu_chain, normalise, tanh_gelu_chain, with_axes


def transformer(g: GraphMaker) -> list[str]:
    """Make two to seven blocks over a sequence; return values that are outputs besides those that nobody reads."""
    batch, length, width = g.between(1, 2), g.between(2, 12), g.draw([4, 8, 12, 16, 24, 32, 48])
    if g.chance(0.25):
        table = g.constant(g.normal((g.between(5, 40), width)))
        kind = g.draw([np.int64, np.int32])
        ids = g.input(g.rng.integers(0, g.shape(table)[0], (batch, length)).astype(kind))
        x = g.op("Gather", [table, ids], axis=0)
    else:
        x = g.input(g.normal((batch, length, width)))
    values = [x]
    for _ in range(g.between(2, 7)):
        x = values[-1] if g.chance(0.85) else g.draw(values)
        try:
            values.append(g.draw(_BLOCKS)(g, x, values))
        except Unsuitable:
            continue
    return [g.draw(values)] if g.chance(0.2) else []


def linear(g: GraphMaker, x: str, width: int) -> str:
    """Return x times a constant matrix, with or without a bias, as MatMul, Gemm or Einsum."""
    *rows, inner = g.shape(x)
    kind = g.draw(["MatMul", "MatMul", "MatMul", "Gemm", "Einsum"])
    if kind == "Einsum" and len(rows) == 2:
        return g.op("Einsum", [x, g.weights((inner, width), inner)], equation="bsi,io->bso")
    if kind == "Gemm":
        flat = x if len(rows) == 1 else g.op("Reshape", [x, g.ints([int(np.prod(rows)), inner])])
        turned = g.between(0, 1)
        inputs = [flat, g.weights((width, inner) if turned else (inner, width), inner)]
        if g.chance(0.7):
            inputs.append(g.constant(g.normal(g.draw([(width,), (1, width), (1,)]))))
        scales: dict[str, Any] = {"alpha": 0.5, "beta": 1.5} if g.chance(0.2) else {}
        y = g.op("Gemm", inputs, transB=turned, **scales)
        return y if len(rows) == 1 else g.op("Reshape", [y, g.ints([*rows, width])])
    y = g.op("MatMul", [x, g.weights((inner, width), inner)])
    if g.chance(0.6):
        pair = [y, g.constant(g.normal((width,)))]
        y = g.op("Add", pair if g.chance(0.5) else pair[::-1])
    return y


def layer_normalization(g: GraphMaker, x: str) -> str:
    """Return a LayerNormalization or an RMSNormalization, as one operator or as the chain of older exporters."""
    width = g.shape(x)[-1]
    scale, shift = g.positive((width,)), g.constant(g.normal((width,)))
    kind = g.draw(["LayerNormalization", "chain", "chain", "RMSNormalization", "rms chain"])
    if kind == "LayerNormalization":
        return g.op(kind, [x, scale, shift] if g.chance(0.7) else [x, scale], epsilon=g.draw([1e-5, 1e-3]))
    if kind == "RMSNormalization":
        return g.op(kind, [x, scale], axis=-1)
    root = g.draw(["Sqrt", "Pow", "Reciprocal"])
    centred = x
    if kind == "chain":
        mean = with_axes(g, "ReduceMean", x, [-1], 18, keepdims=1)
        centred = g.op("Sub", [x, mean])
    again = centred if g.chance(0.7) or kind != "chain" else g.op("Sub", [x, mean])
    square = g.op("Pow", [again, g.number(2)]) if g.chance(0.6) else g.op("Mul", [again, again])
    variance = with_axes(g, "ReduceMean", square, [len(g.shape(x)) - 1 if g.chance(0.3) else -1], 18, keepdims=1)
    safe = g.op("Add", [variance, g.number(g.draw([1e-5, 1e-3]))])
    if root == "Sqrt":
        y = g.op("Div", [centred, g.op("Sqrt", [safe])])
    elif root == "Pow":
        y = g.op("Mul", [centred, g.op("Pow", [safe, g.number(-0.5)])])
    else:
        y = g.op("Mul", [centred, g.op("Reciprocal", [g.op("Sqrt", [safe])])])
    y = g.op("Mul", [y, scale] if g.chance(0.6) else [scale, y])
    return g.op("Add", [y, shift] if g.chance(0.6) else [shift, y]) if kind == "chain" and g.chance(0.8) else y


def feed_forward(g: GraphMaker, x: str, _: list[str]) -> str:
    width = g.shape(x)[-1]
    hidden = linear(g, x, width * g.draw([1, 2, 3]))
    made = g.draw([gelu_chain, tanh_gelu_chain, activation, activation])(g, hidden)
    return _residual(g, x, linear(g, made, width))


def gated(g: GraphMaker, x: str, _: list[str]) -> str:
    """Return the feed-forward block of Llama: SiLU of one product times another one."""
    width = g.shape(x)[-1]
    left, right = linear(g, x, 2 * width), linear(g, x, 2 * width)
    return _residual(g, x, linear(g, g.op("Mul", [g.op("Mul", [left, g.op("Sigmoid", [left])]), right]), width))


def attention(g: GraphMaker, x: str, _: list[str]) -> str:
    """Return self-attention, with scale before or after the product, a mask, softcap and rotation or without."""
    if len(g.shape(x)) != 3:
        raise Unsuitable("no sequence")
    batch, length, width = g.shape(x)
    heads = g.draw([one for one in (1, 2, 4) if width % one == 0])
    depth = width // heads
    if g.chance(0.3):
        parts = g.ops("Split", [linear(g, x, 3 * width), g.ints([width] * 3)], 3, axis=-1)
    else:
        parts = [linear(g, x, width) for _ in range(3)]
    shape = g.ints([batch if g.chance(0.5) else 0, -1 if g.chance(0.5) else length, heads, depth])
    q, k, v = (g.op("Transpose", [g.op("Reshape", [one, shape])], perm=[0, 2, 1, 3]) for one in parts)
    if depth % 2 == 0 and g.chance(0.4):
        rotate = rotary_operator if g.chance(0.5) else rotary_chain
        q, k = (rotate(g, one) for one in (q, k))
    attend = _attention_operator if g.opset >= 23 and g.chance(0.5) else _attention_chain
    y = attend(g, q, k, v)
    y = g.op("Reshape", [g.op("Transpose", [y], perm=[0, 2, 1, 3]), g.ints([batch, length, width])])
    return _residual(g, x, linear(g, y, width))


def _attention_operator(g: GraphMaker, q: str, k: str, v: str) -> str:
    length = g.shape(q)[2]
    inputs = [q, k, v]
    if g.chance(0.4):
        allowed = np.tril(np.ones((length, length), dtype=bool))
        floats = np.where(allowed, 0, -5).astype(numpy_type(g.dtype))
        inputs.append(g.constant(allowed if g.chance(0.5) else floats))
    attributes: dict[str, Any] = {"is_causal": 1} if len(inputs) == 3 and g.chance(0.4) else {}
    return g.op("Attention", inputs, **attributes)


def _attention_chain(g: GraphMaker, q: str, k: str, v: str) -> str:
    length, depth = g.shape(q)[2:]
    scale = g.number(depth**0.5)
    when = g.between(0, 2)
    if when == 0:
        q = g.op("Div", [q, scale])
    scores = g.op("MatMul", [q, g.op("Transpose", [k], perm=[0, 1, 3, 2])])
    if when == 1:
        scores = g.op("Div", [scores, scale])
    elif when == 2:
        scores = g.op("Mul", [scores, g.number(depth**-0.5)])
    mask = g.draw(["none", "add", "where", "input"])
    if mask == "add":
        shape = g.draw([(length, length), (1, 1, length, length), (1, 1, 1, length)])
        scores = g.op("Add", [scores, g.constant(g.normal(shape, 3))])
    elif mask == "where":
        allowed = g.constant(np.tril(np.ones((length, length), dtype=bool)))
        scores = g.op("Where", [allowed, scores, g.number(-1e4)])
    elif mask == "input":
        keep = g.input(g.rng.integers(0, 2, (1, 1, 1, length)).astype(np.int64))
        away = g.op("Sub", [g.number(1), g.op("Cast", [keep], to=g.kinds_number())])
        scores = g.op("Add", [scores, g.op("Mul", [away, g.number(-100)])])
    return g.op("MatMul", [g.op("Softmax", [scores], axis=-1), v])


def rotary_operator(g: GraphMaker, x: str) -> str:
    """Return a RotaryEmbedding by constant tables."""
    batch, _, length, depth = g.shape(x)
    angles = g.rng.random((8 + length, depth // 2)) * 3
    tables = [g.constant(one.astype(numpy_type(g.dtype))) for one in (np.cos(angles), np.sin(angles))]
    places = g.constant(np.tile(np.arange(length, dtype=np.int64), (batch, 1)))
    return g.op("RotaryEmbedding", [x, *tables, places], interleaved=g.between(0, 1))


def rotary_chain(g: GraphMaker, x: str) -> str:
    """Return the rotation of half the elements by the other half, as exporters of Llama write it."""
    length, depth = g.shape(x)[2:]
    angles = g.rng.random((1, 1, length, depth)) * 3
    cos, sin = (g.constant(one.astype(numpy_type(g.dtype))) for one in (np.cos(angles), np.sin(angles)))
    axes = g.ints([3])
    first = g.op("Slice", [x, g.ints([0]), g.ints([depth // 2]), axes])
    second = g.op("Slice", [x, g.ints([depth // 2]), g.ints([1 << 62]), axes])
    turned = g.op("Concat", [g.op("Neg", [second]), first], axis=-1)
    return g.op("Add", [g.op("Mul", [x, cos]), g.op("Mul", [turned, sin])])


def _residual(g: GraphMaker, x: str, y: str) -> str:
    if g.chance(0.2):
        return y
    total = g.op("Add", [x, y] if g.chance(0.5) else [y, x])
    return layer_normalization(g, total) if g.chance(0.5) else total


def product(g: GraphMaker, x: str, values: list[str]) -> str:
    """Return a product of two values of the graph, scaled to unit size."""
    inner = g.shape(x)[-1]
    axes = [*range(len(g.shape(x)) - 2), len(g.shape(x)) - 1, len(g.shape(x)) - 2]
    y = g.op("MatMul", [x, g.op("Transpose", [x], perm=axes)])
    y = g.op("Mul", [y, g.number(1 / inner)])
    if g.chance(0.5):
        return g.op("Mul", [g.op("MatMul", [g.op("Softmax", [y], axis=-1), x]), g.number(0.5)])
    if len(g.shape(x)) == 3 and g.chance(0.5):
        return g.op("Einsum", [x, x], equation=g.draw(["bsi,bti->bst", "bsi,bsi->bs", "bsi,bsi->bi"]))
    return y


def pooled(g: GraphMaker, x: str, _: list[str]) -> str:
    """Return the first row of a sequence, or its mean, through a dense layer."""
    if len(g.shape(x)) != 3:
        raise Unsuitable("no sequence")
    if g.chance(0.5):
        first = g.op("Gather", [x, g.constant(np.array(0, dtype=np.int64))], axis=1)
    else:
        first = with_axes(g, "ReduceMean", x, [1], 18, keepdims=0)
    return g.op("Tanh", [linear(g, first, g.shape(x)[-1])])


def positions(g: GraphMaker, x: str, _: list[str]) -> str:
    """Return x plus rows of a table, gathered by constant places."""
    if len(g.shape(x)) != 3:
        raise Unsuitable("no sequence")
    length, width = g.shape(x)[1:]
    table = g.constant(g.normal((length + 3, width)))
    return g.op("Add", [x, g.op("Gather", [table, g.ints(list(range(length)))], axis=0)])


def _norm(g: GraphMaker, x: str, _: list[str]) -> str:
    return layer_normalization(g, x)


def _softmax(g: GraphMaker, x: str, _: list[str]) -> str:
    return normalise(g, x)


def _activation(g: GraphMaker, x: str, _: list[str]) -> str:
    return activation(g, x)


_BLOCKS: tuple[Callable[[GraphMaker, str, list[str]], str], ...] = (
    feed_forward, feed_forward, gated, attention, attention, attention, product, pooled, positions, _norm, _norm,
    _softmax, _activation, binary,
)  # fmt: skip

"""Texts of arrays as NumPy prints them: rows, columns of equal width, eight digits, summaries of large arrays."""

from __future__ import annotations

from walle.engine_ext import _core
from walle.engine_ext._core import ndarray
from walle.engine_ext.errors import ShapeError, UnsupportedError
from walle.engine_ext.np.base import COMPLEX, FLOATS, asarray

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from walle.engine_ext.np.likes import ArrayLike

__all__ = [
    "array2string", "array_repr", "array_str", "format_float_positional", "format_float_scientific",
    "get_printoptions", "printoptions", "set_printoptions",
]  # fmt: skip

_options: dict[str, Any] = {
    "precision": 8, "threshold": 1000, "edgeitems": 3, "linewidth": 75, "suppress": False, "nanstr": "nan",
    "infstr": "inf", "formatter": None,
}  # fmt: skip
_KINDS = {
    "b": ("bool",), "i": ("int", "int_kind"), "u": ("int", "int_kind"), "f": ("float", "float_kind"),
    "c": ("complexfloat", "complex_kind"),
}  # fmt: skip


def get_printoptions() -> dict[str, Any]:
    """Return a copy of the options that arrays are printed with."""
    return dict(_options)


def set_printoptions(precision: int | None = None, threshold: int | None = None, edgeitems: int | None = None,
                     linewidth: int | None = None, suppress: bool | None = None, nanstr: str | None = None,
                     infstr: str | None = None, formatter: dict[str, Any] | None = None) -> None:  # fmt: skip
    """Set options of printing, for this interpreter; None keeps one, and `formatter` is reset by every call.

    `precision` is the greatest number of digits after the point, `threshold` the number of elements from which a
    summary of `edgeitems` at each end of an axis is printed, `suppress` prints small numbers without an exponent.
    """
    given = {"precision": precision, "threshold": threshold, "edgeitems": edgeitems, "linewidth": linewidth,
             "suppress": suppress, "nanstr": nanstr, "infstr": infstr}  # fmt: skip
    _options.update({name: value for name, value in given.items() if value is not None})
    _options["formatter"] = formatter


class printoptions:  # noqa: N801 -- NumPy's name
    """Context in which arrays are printed with other options."""

    def __init__(self, **options: Any) -> None:
        unknown = sorted(set(options) - set(_options))
        if unknown:
            raise UnsupportedError(f"print option {unknown[0]!r} is not supported; known are {', '.join(_options)}")
        self._options = options
        self._before: dict[str, Any] = {}

    def __enter__(self) -> dict[str, Any]:
        self._before = dict(_options)
        _options.update(self._options)
        return dict(_options)

    def __exit__(self, *error: object) -> None:
        _options.update(self._before)


def array_repr(x: ndarray, max_line_width: int | None = None, precision: int | None = None,
               suppress_small: bool | None = None) -> str:  # fmt: skip
    """Return "array([...], dtype=...)"; int64 and bool are not named, because the numbers show them."""
    prefix = "array("
    width = _options["linewidth"] if max_line_width is None else max_line_width
    body = array2string(x, width, precision, suppress_small, ", ", prefix, suffix=")")
    extras = []
    if (x.size == 0 and x.shape != (0,)) or x.size > _options["threshold"]:
        extras.append(f"shape={x.shape}")
    if x.dtype not in ("int64", "bool") or x.size == 0:
        extras.append(f"dtype={x.dtype}")
    if not extras:
        return f"{prefix}{body})"
    text, extra = f"{prefix}{body},", ", ".join(extras) + ")"
    last_line = len(text) - (text.rfind("\n") + 1)
    return text + ("\n" + " " * len(prefix) if last_line + len(extra) + 1 > width else " ") + extra


def array_str(x: ndarray, max_line_width: int | None = None, precision: int | None = None,
              suppress_small: bool | None = None) -> str:  # fmt: skip
    """Return the elements in brackets; an array without dimensions as its number."""
    if x.ndim == 0 and _options["formatter"] is None:
        return _number_text(x)
    return array2string(x, max_line_width, precision, suppress_small, " ", "")


def _number_text(x: ndarray) -> str:
    """Return the shortest text of a number, with an exponent only where str() of a Python float has one."""
    if x.dtype in COMPLEX:
        real, imag = x.item().real, x.item().imag
        parts = [_number_text(part).removesuffix(".0") for part in (x.real, x.imag)]
        if real == 0 and not str(real).startswith("-"):
            return f"{parts[1]}j"
        sign = "" if str(imag).startswith("-") else "+"
        return f"({parts[0]}{sign}{parts[1]}j)"
    if x.dtype not in FLOATS or not bool(_core.unary("IsFinite", x)):
        return str(x.item())
    (text,) = _core.shortest_digits(x)
    size = abs(x.item())
    if size == 0 or 1e-4 <= size < _LARGEST_NUMBER.get(x.dtype, 1e2):
        plain = _positional(text)
        return plain + "0" if plain.endswith(".") else plain
    return text


# Numbers without dimensions from which an exponent is printed.
_LARGEST_NUMBER = {"bfloat16": 1e2, "float16": 1e3, "float32": 1e6, "float64": 1e16}


def array2string(x: ArrayLike, max_line_width: int | None = None, precision: int | None = None,
                 suppress_small: bool | None = None, separator: str = " ", prefix: str = "", *,
                 threshold: int | None = None, edgeitems: int | None = None, suffix: str = "",
                 formatter: dict[str, Any] | None = None) -> str:  # fmt: skip
    """Return the elements in brackets, a row a line; lines after the first are indented by the length of `prefix`."""
    given = asarray(x)
    limit = _options["threshold"] if threshold is None else threshold
    edge = _options["edgeitems"] if edgeitems is None else edgeitems
    width = (_options["linewidth"] if max_line_width is None else max_line_width) - len(suffix)
    if given.size == 0:
        return "[]"
    shown = _shown(given, edge) if given.size > limit else given
    words = iter(_texts(shown, precision, suppress_small, formatter or _options["formatter"]))
    layout = _Layout(given.shape, edge if given.size > limit else 0, separator, words)
    return layout.text(0, " " * (len(prefix) + 1), width)


def _shown(x: ndarray, edge: int) -> ndarray:
    """Return the elements that a summary shows."""
    for axis, size in enumerate(x.shape):
        if size > 2 * edge:
            places = [*range(edge), *range(size - edge, size)]
            x = x[(slice(None),) * axis + (asarray(places, "int64"),)]
    return x


class _Layout:
    """Rows and brackets around the texts of elements, which are taken in row-major order."""

    def __init__(self, shape: tuple[int, ...], edge: int, separator: str, words: Iterator[str]) -> None:
        self._shape, self._edge, self._separator, self._words = shape, edge, separator, words

    def text(self, axis: int, indent: str, width: int) -> str:
        if axis == len(self._shape):
            return next(self._words)
        size = self._shape[axis]
        summary = 0 < 2 * self._edge < size
        count = 2 * self._edge if summary else size
        parts = [self.text(axis + 1, indent + " ", width - 1) for _ in range(count)]
        if summary:
            parts.insert(self._edge, "...")
        if axis == len(self._shape) - 1:
            body = self._line(parts, indent, width)
        else:
            blank = self._separator.rstrip() + "\n" * (len(self._shape) - axis - 1)
            body = (blank + indent).join(parts)
        return f"[{body}]"

    def _line(self, words: list[str], indent: str, width: int) -> str:
        """Return the elements of a row, on further lines where they do not fit on one."""
        room = width - max(len(self._separator.rstrip()), 1)
        done, line = "", indent
        for at, word in enumerate(words):
            if len(line) + len(word) > room and len(line) > len(indent):
                done, line = f"{done}{line.rstrip()}\n", indent
            line += word
            if at < len(words) - 1:
                line += self._separator
        return (done + line)[len(indent) :]


def _texts(x: ndarray, precision: int | None, suppress: bool | None, formatter: dict[str, Any] | None) -> list[str]:
    """Return the texts of the elements, in row-major order, padded to one width."""
    kind = x.dtype.kind
    for name in (*_KINDS.get(kind, ()), "all"):
        if formatter and name in formatter:
            write: Callable[[Any], str] = formatter[name]
            return [write(one) for one in x.reshape(-1).tolist()]
    numbers = x.reshape(-1).tolist()
    if kind == "b":
        return [str(one) if one is False or x.ndim == 0 else " True" for one in numbers]
    if kind not in "fc":
        texts = [str(one) for one in numbers]
        width = max(len(text) for text in texts)
        return [text.rjust(width) for text in texts]
    digits = _options["precision"] if precision is None else precision
    if digits is not None and digits < 0:
        raise ShapeError(f"precision {digits}; it must not be negative")
    small = _options["suppress"] if suppress is None else suppress
    if kind == "f":
        return _float_texts(x, numbers, digits, small)
    real = _float_texts(x.real.reshape(-1), [one.real for one in numbers], digits, small)
    sizes = _core.unary("Abs", x.imag.reshape(-1))
    texts = []
    for one, first, second in zip(numbers, real, _float_texts(sizes, sizes.tolist(), digits, small), strict=True):
        sign = "-" if str(one.imag).startswith("-") else "+"
        before, after = len(second) - len(second.lstrip()), len(second) - len(second.rstrip())
        texts.append(f"{first}{' ' * before}{sign}{second.strip()}j{' ' * after}")
    return texts


# Numbers from which an exponent is printed: the digits that a dtype holds, at most eight.
_LARGEST = {"bfloat16": 1e2, "float16": 1e3, "float32": 1e6, "float64": 1e8}


def _float_texts(x: ndarray, numbers: list[float], digits: int | None, suppress: bool) -> list[str]:
    shortest = _core.shortest_digits(x)
    finite = [at for at, one in enumerate(numbers) if one - one == 0]
    sizes = [abs(numbers[at]) for at in finite if numbers[at] != 0]
    exponents = bool(sizes) and (
        max(sizes) >= _LARGEST.get(x.dtype, 1e2)
        or (not suppress and (min(sizes) < 1e-4 or max(sizes) / min(sizes) > 1000))
    )
    texts: dict[int, str] = {}
    left = right = 0
    if exponents:
        parts = {at: _scientific(shortest[at], numbers[at], digits).split("e") for at in finite}
        fraction = max(len(mantissa.partition(".")[2]) for mantissa, _ in parts.values())
        power = max(len(exponent) for _, exponent in parts.values()) - 1
        for at, parted in parts.items():
            if len(parted[0].partition(".")[2]) < fraction:  # NumPy fills a column with the number's own digits
                parted = f"{numbers[at]:#.{fraction}e}".split("e")  # noqa: PLW2901
            mantissa, exponent = parted
            texts[at] = f"{mantissa}e{exponent[0]}{exponent[1:].rjust(power, '0')}"
        left = max(text.index(".") for text in texts.values())
        right = fraction + power + 2
    elif finite:
        for at in finite:
            texts[at] = _rounded(shortest[at], numbers[at], digits)
        left = max(text.index(".") for text in texts.values())
        right = max(len(text) - text.index(".") - 1 for text in texts.values())
    if len(finite) < len(numbers):
        for at, one in enumerate(numbers):
            if at not in texts:
                infinity: str = _options["infstr"]
                texts[at] = infinity if one > 0 else "-" + infinity if one < 0 else _options["nanstr"]
        left = max(left, max(len(texts[at]) for at in texts if at not in finite) - right - 1)
    lines = []
    for at in range(len(numbers)):
        text = texts[at]
        if numbers[at] - numbers[at] == 0:
            whole, dot, rest = text.partition(".")
            text = whole.rjust(left) + dot + rest.ljust(right)
        else:
            text = text.rjust(left + right + 1)
        lines.append(text)
    return lines


def _scientific(shortest: str, number: float, digits: int | None) -> str:
    """Return the shortest text with an exponent, with at most a number of digits after the point."""
    mantissa, _, exponent = shortest.partition("e")
    whole, _, fraction = mantissa.partition(".")
    if digits is not None and len(fraction) > digits:
        mantissa, _, exponent = f"{number:.{digits}e}".partition("e")
        whole, _, fraction = mantissa.partition(".")
        fraction = fraction.rstrip("0")
    return f"{whole}.{fraction}e{exponent}"


def _positional(shortest: str) -> str:
    """Return the shortest text without an exponent: at least one digit before the point, none needed after it."""
    mantissa, _, exponent = shortest.partition("e")
    sign = "-" if mantissa.startswith("-") else ""
    whole, _, fraction = mantissa.lstrip("-").partition(".")
    places = int(exponent)
    digits = whole + fraction
    if places < 0:
        return f"{sign}0.{('0' * (-places - 1) + digits).rstrip('0')}"
    return f"{sign}{digits[: places + 1].ljust(places + 1, '0')}.{digits[places + 1 :].rstrip('0')}"


def _rounded(shortest: str, number: float, digits: int | None) -> str:
    text = _positional(shortest)
    if digits is None or len(text) - text.index(".") - 1 <= digits:
        return text
    text = f"{number:.{digits}f}"
    return text.rstrip("0") if "." in text else text + "."


def format_float_positional(x: ArrayLike, precision: int | None = None) -> str:
    """Return the shortest text of a number without an exponent."""
    given = asarray(x, "float64") if isinstance(x, float | int) else asarray(x)
    return _rounded(_core.shortest_digits(given)[0], given.item(), precision)


def format_float_scientific(x: ArrayLike, precision: int | None = None) -> str:
    """Return the shortest text of a number with an exponent."""
    given = asarray(x, "float64") if isinstance(x, float | int) else asarray(x)
    return _scientific(_core.shortest_digits(given)[0], given.item(), precision)

"""`walle model` and `walle operators`: running, planning, converting and fetching models; the list of operators."""

import ast
import json
import math
import re
import struct
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from walle.cli.model import calibrate, cut, measure, primitives
from walle.cli.model import files as model_files
from walle.cli.model.shapes import parse_shapes
from walle.cli.output import JsonFlag, emit, emit_rows, working
from walle.errors import ConfigError

_NPY_MAGIC = b"\x93NUMPY"
_NPY_FORMATS = {  # NumPy's type → struct's
    "b1": "?", "i1": "b", "u1": "B", "i2": "h", "u2": "H", "i4": "i", "u4": "I", "i8": "q", "u8": "Q",
    "f2": "e", "f4": "f", "f8": "d",
}  # fmt: skip
_SHOWN_VALUES = 8

Model = Annotated[Path, typer.Argument(help="A .walle model.")]


class InputError(ConfigError):
    """An input file, `path`, that cannot be read."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(f"{path}: {what}")
        self.path = path


def read_npy(path: Path) -> Any:
    """Return the array of a .npy file as a shaped memoryview, without NumPy.

    Raises:
        InputError: the file is not a .npy file, or does not hold numbers in C order and this machine's byte order.
    """
    data = path.read_bytes()
    if not data.startswith(_NPY_MAGIC) or len(data) < 10:
        raise InputError(path, "is not a .npy file; write it with numpy.save, or give a .json file")
    wide = data[6] > 1
    start = 12 if wide else 10
    end = start + struct.unpack_from("<I" if wide else "<H", data, 8)[0] if len(data) >= start else 0
    try:
        head = ast.literal_eval(data[start:end].decode("latin-1"))
        kind, shape, fortran = head["descr"], tuple(head["shape"]), head["fortran_order"]
        size = math.prod(shape)
    except (ValueError, SyntaxError, KeyError, TypeError, RecursionError) as error:
        raise InputError(path, f"its .npy header is broken ({error})") from error
    match = re.fullmatch(r"[<|=]([bifu]\d)", str(kind))
    format_ = _NPY_FORMATS.get(match[1]) if match else None
    if format_ is None or fortran:
        raise InputError(
            path,
            f"type {kind!r}{' in Fortran order' if fortran else ''} is not supported;"
            " save it as little-endian numbers in C order",
        )
    body: Any = memoryview(data)[end:]
    if len(body) != size * struct.calcsize(f"<{format_}"):
        raise InputError(
            path, f"holds {len(body)} bytes of values, but shape {shape} needs {size * struct.calcsize(f'<{format_}')}"
        )
    return body.cast(format_, shape) if shape and size else body.cast(format_)


def read_input(path: Path) -> Any:
    """Return the value in a .npy or .json file: an array, a number or nested lists of numbers; raises InputError."""
    try:
        if path.suffix == ".npy":
            return read_npy(path)
        return json.loads(path.read_bytes())
    except OSError as error:
        raise InputError(path, error.strerror or str(error)) from error
    except (ValueError, RecursionError) as error:
        raise InputError(path, f"is neither .npy nor JSON ({error})") from error


def _parse_inputs(texts: list[str]) -> dict[str, Path]:
    inputs: dict[str, Path] = {}
    for text in texts:
        name, equals, path = text.rpartition("=")
        if not equals or not name or not path:
            raise typer.BadParameter(f"{text!r} is not of the form NAME=FILE, such as x=x.npy", param_hint="--input")
        inputs[name] = Path(path)
    return inputs


def run(
    model: Model,
    input_: Annotated[
        list[str] | None, typer.Option("--input", help="NAME=FILE, a .npy or .json; once for each.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Run a model once and print its outputs. An error about a missing input lists all inputs, dtypes and shapes."""
    files = _parse_inputs(input_ or [])
    from walle import np
    from walle.engine_ext.session import Module, load

    session = load(model)
    infos = {info.name: info for info in session.inputs}
    if wrong := sorted(infos.keys() ^ files.keys()):
        raise ConfigError(f"{model}: {', '.join(wrong)}: {_input_list(session, '--input NAME=FILE')}")
    objects = isinstance(session, Module)
    inputs = {name: _as_input(read_input(path), infos[name], np, objects=objects) for name, path in files.items()}
    with working(f"running {model}", as_json=as_json):
        outputs = session.run(inputs)
    if as_json:
        emit({name: _output_json(one) for name, one in outputs.items()}, as_json=True)
        return
    emit_rows([row for name, one in outputs.items() for row in _output_rows(name, one)], as_json=False)


def _as_input(value: Any, info: Any, np: Any, *, objects: bool) -> Any:
    """Return a file's value converted for an input; a module's input without a type is a sequence or an optional."""
    if objects and info.shape is None and info.dtype is None and (value is None or isinstance(value, list)):
        return value and [np.asarray(item) for item in value]
    return np.asarray(value, dtype=info.dtype)


def _input_list(session: Any, how: str) -> str:
    inputs = ", ".join(f"{info.name} ({info.dtype or 'any dtype'}, {_shape(info.shape)})" for info in session.inputs)
    return f"the model takes {inputs or 'no input'}; give each as {how}"


def _shape(shape: Any) -> str:
    """Return a shape as text, with ? for sizes that are known at run time only."""
    if shape is None:
        return "any shape"
    return "×".join("?" if size is None else str(size) for size in shape) or "scalar"


def _output_json(output: Any) -> Any:
    """Return an output as JSON: an array, a list of them (a sequence) or null (an empty optional)."""
    if output is None or isinstance(output, list):
        return output and [_output_json(item) for item in output]
    return {"shape": list(output.shape), "dtype": str(output.dtype), "values": output.tolist()}


def _output_rows(name: str, output: Any) -> list[dict[str, Any]]:
    if isinstance(output, list):
        rows = [row for i, item in enumerate(output) for row in _output_rows(f"{name}[{i}]", item)]
        return rows or [{"output": name, "shape": "", "dtype": "", "values": "an empty sequence"}]
    if output is None:
        return [{"output": name, "shape": "", "dtype": "", "values": "nothing"}]
    return [_output_row(name, output)]


def _output_row(name: str, output: Any) -> dict[str, Any]:
    values = _flat(output.tolist())
    first = ", ".join(f"{value:.6g}" for value in values[:_SHOWN_VALUES])
    more = ", …" if len(values) > _SHOWN_VALUES else ""
    return {"output": name, "shape": _shape(output.shape), "dtype": output.dtype, "values": first + more}


def _flat(values: Any) -> list[Any]:
    return [leaf for value in values for leaf in _flat(value)] if isinstance(values, list) else [values]


def plan(
    model: Model,
    shape: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME=8x16, once for each input, if the model's shapes are not fixed; the model is then run on zeros."
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Show the plan of a model: the backend and each step."""
    shapes = parse_shapes(shape or [])
    from walle import np
    from walle.engine_ext.session import load

    session = load(model)
    infos = {info.name: info for info in session.inputs}
    if shapes:
        if wrong := sorted(infos.keys() ^ shapes.keys()):
            raise ConfigError(f"{model}: {', '.join(wrong)}: {_input_list(session, '--shape NAME=8x16')}")
        session.run({name: np.zeros(sizes, dtype=infos[name].dtype or "float32") for name, sizes in shapes.items()})
    found = session.plan()
    if found is None:
        raise ConfigError(
            f"{model}: its shapes are known at run time only; {_input_list(session, '--shape NAME=8x16')}"
        )
    emit(_plain(found), as_json=as_json, text=escape(str(found)))


def _plain(value: Any) -> Any:
    """Return a named tuple, with its contents, as values for JSON."""
    if hasattr(value, "_asdict"):
        return {name: _plain(part) for name, part in value._asdict().items()}
    return [_plain(part) for part in value] if isinstance(value, tuple | list) else value


def convert(
    model: Annotated[
        Path, typer.Argument(help="An ONNX model, whose external weights are in its folder, or a .tflite model.")
    ],
    out: Annotated[Path | None, typer.Argument(help="The .walle file; by default in the model's folder.")] = None,
    memory_mb: Annotated[
        int, typer.Option(min=16, help="Most memory, in MiB, beside four times the size of the model's file.")
    ] = 512,
    cpu_s: Annotated[int, typer.Option(min=1, help="Most CPU time, in seconds.")] = 120,
    as_json: JsonFlag = False,
) -> None:
    """Convert an ONNX or TFLite model to .walle, in a process with limits; needs the package onnx, for TFLite NumPy.

    TFLite models may be float32 convolutional networks of one image. An image [1, height, width, channels] becomes
    [1, channels, height, width]. An operator that is not supported is an error that names it.
    """
    from walle.engine_ext.conversion import ConvertLimits
    from walle.engine_ext.conversion import convert as convert_file

    target = out or model.with_suffix(".walle")
    limits = ConvertLimits(memory_bytes=memory_mb << 20, cpu_s=cpu_s, wall_s=max(300.0, 2.5 * cpu_s))
    with working(f"converting {model}", as_json=as_json):
        convert_file(model, target, limits=limits)
    report = {"model": str(target), "bytes": target.stat().st_size}
    emit(report, as_json=as_json, text=escape(f"{target}: {report['bytes']} bytes"))


def operators(
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print them as a page.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """List the engine's operators: atomic, transform, composite, control-flow, and what each decomposes to.

    The paper's workload formula with the engine's own counts follows the list.
    """
    from walle.engine_ext.operators import markdown, workload
    from walle.engine_ext.operators import operators as known

    if as_markdown:
        typer.echo(markdown(), nl=False)
        return
    rows = [_plain(one) for one in known()]
    if not as_json:
        rows = [{**row, "decomposes_to": ", ".join(row["decomposes_to"])} for row in rows]
    emit_rows(rows, as_json=as_json)
    if not as_json:
        typer.echo(str(workload()))


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Run models and see how the engine runs them.", no_args_is_help=True)
    group.command(epilog="Example: walle model run encoder.walle --input x=x.npy --input state=state.json")(run)
    group.command(epilog="Example: walle model convert encoder.onnx encoder.walle")(convert)
    group.command(epilog="Example: walle model get face_yunet --models-dir ../models")(model_files.get)
    group.command(epilog="Example: walle model plan encoder.walle")(plan)
    group.command(epilog="Example: walle model bench encoder.walle --threads 2 --profile")(measure.bench)
    group.command(epilog="Example: walle model cut net.onnx --bandwidth 10Mbit/s --rtt 30ms --device-slower 4")(cut.cut)
    group.command(epilog="Example: walle model calibrate --minutes 5 --output rates.json")(calibrate.calibrate)
    group.command(epilog="Example: walle model profile-primitives --backend avx2 --minutes 15")(
        primitives.profile_primitives
    )
    app.add_typer(group, name="model")
    app.command(epilog="Example: walle operators --json")(operators)

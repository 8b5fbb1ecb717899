"""Broken and hostile ONNX files: each is refused with a typed error that names the node, or converts and runs."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from packaging.version import Version

import walle
from tests.engine_ext.hostile_onnx import FILES, HostileFile
from tests.night.cases import at_night
from tests.sim.onnx_models import NODE, model
from walle import onnx_backend
from walle.engine_ext.conversion import ConvertLimits, convert_bytes
from walle.engine_ext.conversion.converter import Converter
from walle.engine_ext.errors import ModelError, UnsupportedError
from walle.engine_ext.session import load
from walle.errors import EngineError

LIMITS = ConvertLimits(memory_bytes=256 << 20, cpu_s=10, wall_s=60)


@pytest.fixture(scope="module")
def converter() -> Iterator[Converter]:
    with Converter(LIMITS, idle_s=60) as one:
        yield one


def convert(converter: Converter, path: Path) -> bytes:
    with path.open("rb") as source, path.with_suffix(".walle").open("w+b") as out:
        converter.convert(source.fileno(), out.fileno(), name=str(path), folder=str(path.parent))
        out.seek(0)
        return out.read()


@pytest.mark.parametrize("file", FILES, ids=[one.name for one in FILES])
def test_a_hostile_file_is_refused_by_name_or_converts(file: HostileFile, converter: Converter, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(file.data)
    if file.prepare is not None:
        file.prepare(tmp_path)
    if not file.error:
        load(convert(converter, path))
        return
    with pytest.raises(EngineError, match=file.error):  # noqa: PT012 -- refused by the converter, or by the planner
        module = load(convert(converter, path))
        module.run(
            {
                info.name: np.zeros([dim or 1 for dim in info.shape or ()], info.dtype or "float32")
                for info in module.inputs
            }
        )


def test_there_are_at_least_59_hostile_files() -> None:
    assert len({one.name for one in FILES}) == len(FILES) >= 59


@pytest.mark.night
@pytest.mark.exhausts
def test_mutations_of_hostile_files_end_no_process() -> None:
    """In a process with limits, which would end where one of the mutations ends the converter's caller."""
    command = [sys.executable, "-m", "tests.sim.hostile_onnx", "--times", "2", "--seed", "31"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    counts = json.loads(done.stdout.splitlines()[-1])
    assert counts["files"] > 2 * len(FILES)
    assert counts["refused"] > len(FILES)
    assert counts["converted"] > 0


def test_a_hostile_file_is_refused_everywhere(tmp_path: Path) -> None:
    """Each way into onnx's parsers: `convert`, `Session`, `Module`, `load`, bytes and the backend of onnx."""
    data = next(one.data for one in FILES if one.name == "zero strides of Conv")
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    ways: dict[str, Callable[[], object]] = {
        "convert": lambda: walle.convert(path, tmp_path / "m.walle"),
        "Session": lambda: walle.Session(path),
        "Module": lambda: walle.Module(path),
        "load": lambda: load(path),
        "bytes": lambda: convert_bytes(data),
        "backend": lambda: onnx_backend.prepare(onnx.ModelProto.FromString(data)),
    }
    for way, run in ways.items():
        with pytest.raises(ModelError, match="culprit"):
            run()
        assert not (tmp_path / "m.walle").exists(), way
    with pytest.raises(ModelError, match=r"m\.onnx"):
        walle.Session(path)


@pytest.mark.skipif(
    Version(onnx.__version__) >= Version("1.23"), reason="onnx 1.23 no longer ends its process at this file"
)
def test_a_node_that_ends_the_process_of_onnx_is_named() -> None:
    data = next(one.data for one in FILES if one.name == "Attention with zero heads")
    with pytest.raises(ModelError, match=r"culprit.*SIGFPE"):
        convert_bytes(data)


def large_model(elements: int = 16 << 20) -> bytes:
    weights = {"w": np.arange(elements, dtype=np.float32)}
    return bytes(
        model(
            [NODE("Add", ["x", "w"], ["y"])], {"x": np.zeros(1, np.float32)}, ["y"], weights=weights
        ).SerializeToString()
    )


def test_weights_are_not_copied_into_memory(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(large_model())  # 64 MiB
    walle.convert(path, tmp_path / "m.walle", limits=ConvertLimits(memory_bytes=24 << 20, memory_factor=0))
    found = walle.Session(tmp_path / "m.walle").run({"x": np.ones(1, np.float32)})["y"]
    np.testing.assert_array_equal(np.asarray(found), np.arange(16 << 20, dtype=np.float32) + 1)


@pytest.mark.exhausts
def test_external_weights_count_as_parts_of_the_model(tmp_path: Path) -> None:
    """Limits of memory and of the written file grow with them: int4 becomes a byte for each element."""
    packed = onnx.helper.make_tensor("w", onnx.TensorProto.INT4, [96 << 20], bytes(48 << 20), raw=True)
    proto = model([NODE("Cast", ["w"], ["c"], to=onnx.TensorProto.INT8), NODE("Gather", ["c", "i"], ["y"])],
                  {"i": np.array([3], np.int64)}, ["y"])  # fmt: skip
    proto.graph.initializer.append(packed)
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin")
    assert (tmp_path / "m.onnx").stat().st_size < 1000
    walle.convert(tmp_path / "m.onnx", tmp_path / "m.walle", limits=ConvertLimits(memory_bytes=64 << 20))
    assert (tmp_path / "m.walle").stat().st_size > 96 << 20


def test_memory_beyond_the_limit_is_refused(tmp_path: Path) -> None:
    proto = model([NODE("Add", ["x", "w"], ["y"])], {"x": np.zeros(1, np.float32)}, ["y"])
    proto.graph.initializer.append(onnx.helper.make_tensor("w", onnx.TensorProto.INT32, [1 << 20], range(1 << 20)))
    onnx.save(proto, tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=r"m\.onnx.*memory.*ConvertLimits"):
        walle.convert(
            tmp_path / "m.onnx", tmp_path / "m.walle", limits=ConvertLimits(memory_bytes=1 << 20, memory_factor=0)
        )
    assert [one.name for one in tmp_path.iterdir()] == ["m.onnx"]


def many_nodes(count: int) -> bytes:
    nodes = [NODE("Neg", [f"v{i}"], [f"v{i + 1}"]) for i in range(count)]
    return bytes(model(nodes, {"v0": np.zeros(2, np.float32)}, [f"v{count}"]).SerializeToString())


@pytest.mark.parametrize(
    ("limits", "why"), [*at_night((ConvertLimits(cpu_s=1), "CPU time")), (ConvertLimits(wall_s=0.5), "0.5 s")]
)
def test_time_beyond_the_limit_is_refused(tmp_path: Path, limits: ConvertLimits, why: str) -> None:
    (tmp_path / "m.onnx").write_bytes(many_nodes(20_000))
    with pytest.raises(ModelError, match=why):
        walle.convert(tmp_path / "m.onnx", tmp_path / "m.walle", limits=limits)
    assert [one.name for one in tmp_path.iterdir()] == ["m.onnx"]


def test_more_nodes_than_the_limit_are_refused(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(many_nodes(101))
    with pytest.raises(ModelError, match=r"'v101'.*100 nodes"):
        walle.convert(tmp_path / "m.onnx", tmp_path / "m.walle", limits=ConvertLimits(nodes=100))


def process_of(converter: Converter) -> int:
    assert converter._process is not None
    return converter._process._process.pid


def test_a_converter_whose_process_has_ended_starts_another(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(many_nodes(3))
    with Converter(idle_s=60) as converter:
        expected = convert(converter, tmp_path / "m.onnx")
        first = process_of(converter)
        os.kill(first, signal.SIGKILL)
        assert convert(converter, tmp_path / "m.onnx") == expected
        assert process_of(converter) != first
    assert not Path(f"/proc/{first}").exists()


def test_a_process_that_does_not_start_is_an_error_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "m.onnx").write_bytes(many_nodes(3))
    monkeypatch.setattr("walle.engine_ext.conversion.converter._PROGRAM", "import a_package_that_is_broken")
    with Converter() as converter, pytest.raises(ModelError, match=r"ended before.*No module named 'a_package"):
        convert(converter, tmp_path / "m.onnx")


def in_a_program(program: str) -> str:
    """Return what a program prints, which has a small model as `data`."""
    start = (
        "import os, signal, threading\n"
        "from walle.engine_ext.conversion import convert_bytes\n"
        "from tests.engine_ext.test_hostile_onnx import many_nodes\n"
        "data = many_nodes(3)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", start + program], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


def test_a_program_that_ignores_signals_converts() -> None:
    """Its processes inherit that, and the converter's process waits for its children."""
    program = "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\nprint(len(convert_bytes(data)) > 0)"
    assert in_a_program(program) == "True"


def test_a_fork_converts_while_a_thread_of_its_parent_did() -> None:
    program = """
from walle.engine_ext.conversion.convert import _shared
_shared()._lock.acquire()  # as a thread does for the time of a conversion
child = os.fork()
if child == 0:
    signal.alarm(30)
    os._exit(0 if convert_bytes(data) else 1)
_shared()._lock.release()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert in_a_program(program) == "0"


def test_a_long_name_is_shortened_in_messages(converter: Converter, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    for op in ("Neg", "Unknown"):
        node = NODE(op, ["x"], ["y"], name="n" * 100_000)
        path.write_bytes(bytes(model([node], {"x": np.zeros(2, np.float32)}, ["y"]).SerializeToString()))
        if op == "Neg":
            load(convert(converter, path))
            continue
        with pytest.raises(UnsupportedError, match="node 'nnn"):
            convert(converter, path)


def test_an_idle_process_exits(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(many_nodes(3))
    with Converter(idle_s=0.2) as converter:
        convert(converter, tmp_path / "m.onnx")
        pid, until_s = process_of(converter), time.monotonic() + 20
        while Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z" and time.monotonic() < until_s:
            time.sleep(0.05)
        assert Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
        convert(converter, tmp_path / "m.onnx")


def test_a_path_without_a_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.onnx")
    for path in (tmp_path / "pipe.onnx", tmp_path):
        with pytest.raises(ModelError, match=r"cannot read|not a file"):
            walle.convert(path, tmp_path / "m.walle")


def test_conversion_keeps_this_process_small(tmp_path: Path) -> None:
    """The package onnx is not even imported where a file is converted."""
    (tmp_path / "m.onnx").write_bytes(many_nodes(3))
    program = "import sys, walle; walle.convert(*sys.argv[1:]); print('onnx' in sys.modules)"
    command = [sys.executable, "-c", program, str(tmp_path / "m.onnx"), str(tmp_path / "m.walle")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
    assert resource.getrlimit(resource.RLIMIT_CPU)[0] == resource.RLIM_INFINITY

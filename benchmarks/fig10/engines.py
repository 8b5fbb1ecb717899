"""Engines of Fig. 10 behind one interface of four calls; each library is imported only in the process that runs it.

An engine whose library is not installed is left out: `absent` returns what is missing, and the report names it.
"""

import importlib.util
import re
import shutil
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from benchmarks.fig10.quantised import quantised


class Engine(ABC):
    """An engine with one model. Call `imports`, `convert`, `load` once, then `run` any number of times."""

    name: ClassVar[str]
    packages: ClassVar[tuple[str, ...]] = ()
    precision: ClassVar[str] = "float32"

    def __init__(self, model: Path, threads: int, entry: dict[str, Any]) -> None:
        self.model, self.threads, self.entry = model, threads, entry

    @classmethod
    def absent(cls) -> str:
        """Return why this engine cannot run here; an empty text if it can."""
        missing = [package for package in cls.packages if importlib.util.find_spec(package) is None]
        return f"{', '.join(missing)} not installed" if missing else ""

    def imports(self) -> None:  # noqa: B027 -- nothing to do for some
        """Import the library; its time does not count as loading."""

    def convert(self) -> None:  # noqa: B027 -- nothing to do for some
        """Write the engine's own file beside the model unless it exists; its time does not count as loading."""

    @abstractmethod
    def load(self) -> None:
        """Load the model from the engine's own file."""

    @abstractmethod
    def run(self, inputs: dict[str, Any]) -> list[Any]:
        """Return the outputs in the manifest's order; later runs do not write to them."""

    def search_ms(self) -> float | None:
        """Return the milliseconds of choosing algorithms, or None if the engine does not report them."""
        return None


class Walle(Engine):
    name = "walle"
    backend: ClassVar[str] = "auto"

    @classmethod
    def absent(cls) -> str:
        from walle.engine_ext.session import backends

        known = {backend.name: backend.available for backend in backends()} | {"auto": True}
        if cls.backend not in known:
            return f"this build has no backend {cls.backend}"
        return "" if known[cls.backend] else f"this CPU has no {cls.backend}"

    def imports(self) -> None:
        import walle

        self.walle = walle

    def convert(self) -> None:
        source, self.model = self.model, self.model.with_suffix(".walle")
        if not self.model.exists():
            self.walle.convert(source, self.model)

    def load(self) -> None:
        self.session = self.walle.Session(self.model, backend=self.backend, threads=self.threads)

    def run(self, inputs: dict[str, Any]) -> list[Any]:
        outputs = self.session.run(inputs)
        return [np.asarray(outputs[name]) for name in self.entry["outputs"]]

    def search_ms(self) -> float | None:
        plan = self.session.plan()
        return None if plan is None else plan.search_ms


class WalleBf16(Walle):
    name, backend, precision = "walle-bf16", "avx512_bf16", "bfloat16"


class WalleInt8(Walle):
    name, packages, precision = "walle-int8", ("onnxruntime",), "int8"

    def convert(self) -> None:
        self.model = quantised(self.model, self.entry)
        super().convert()


class OnnxRuntime(Engine):
    name, packages = "onnxruntime", ("onnxruntime",)

    def imports(self) -> None:
        import onnxruntime

        self.api = onnxruntime

    def load(self) -> None:
        options = self.api.SessionOptions()
        options.intra_op_num_threads = self.threads
        options.log_severity_level = 3
        self.session = self.api.InferenceSession(str(self.model), options, providers=["CPUExecutionProvider"])

    def run(self, inputs: dict[str, Any]) -> list[Any]:
        return list(self.session.run(self.entry["outputs"], inputs))


class OnnxRuntimeInt8(OnnxRuntime):
    name, precision = "onnxruntime-int8", "int8"

    def convert(self) -> None:
        self.model = quantised(self.model, self.entry)


class Mnn(Engine):
    """MNN's session API. Its converter is called as a function, because the script around it installs telemetry."""

    name, packages = "mnn", ("MNN",)
    precision_level: ClassVar[str] = "normal"

    def imports(self) -> None:
        import MNN

        self.api = MNN

    def convert(self) -> None:
        source, self.model = self.model, self.model.with_suffix(".mnn")
        if self.model.exists():
            return
        import _tools

        files = ["--modelFile", str(source), "--MNNModel", str(self.model)]
        _tools.mnnconvert(["mnnconvert", "-f", "ONNX", *files, "--bizCode", "fig10"])

    def load(self) -> None:
        api = self.api
        self.net = api.Interpreter(str(self.model))
        level = self.precision_level
        settings = {"backend": "CPU", "precision": level, "memory": level, "numThread": self.threads}
        self.session = self.net.createSession(settings)
        found = self.net.getSessionInputAll(self.session)
        self.inputs = {}
        for name, (shape, dtype) in self.entry["inputs"].items():
            self.net.resizeTensor(found[name], tuple(shape))
            kind = api.Halide_Type_Int if dtype == "int64" else api.Halide_Type_Float
            self.inputs[name] = found[name], tuple(shape), kind
        self.net.resizeSession(self.session)
        outputs = self.net.getSessionOutputAll(self.session)
        self.outputs = [outputs[name] for name in self.entry["outputs"]]

    def run(self, inputs: dict[str, Any]) -> list[Any]:
        api = self.api
        for name, array in inputs.items():
            tensor, shape, kind = self.inputs[name]
            given = array.astype(np.int32) if array.dtype == np.int64 else array
            tensor.copyFrom(api.Tensor(shape, kind, given, api.Tensor_DimensionType_Caffe))
        self.net.runSession(self.session)
        results = []
        for tensor in self.outputs:
            shape = tensor.getShape()
            space, kind = np.empty(shape, np.float32), api.Halide_Type_Float
            host = api.Tensor(shape, kind, space, api.Tensor_DimensionType_Caffe)
            tensor.copyToHostTensor(host)
            results.append(np.array(host.getNumpyData()).reshape(shape))
        return results


class MnnLow(Mnn):
    """MNN at low precision: bfloat16 where its build supports it, else float32."""

    name, precision, precision_level = "mnn-low", "bfloat16", "low"


class Ncnn(Engine):
    name, packages = "ncnn", ("ncnn", "pnnx")
    halved: ClassVar[bool] = False

    def imports(self) -> None:
        import ncnn

        self.api = ncnn

    def convert(self) -> None:
        source, self.model = self.model, self.model.with_suffix(".ncnn.bin")
        if self.model.exists():
            return
        tool = Path(sys.executable).with_name("pnnx")
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(source, Path(folder, "m.onnx"))
            subprocess.run([tool, "m.onnx", "fp16=0"], cwd=folder, check=True, capture_output=True)
            shutil.copy(Path(folder, "m_ncnn.py"), self.model.with_suffix(".py"))  # names the batch axis
            shutil.copy(Path(folder, "m.ncnn.param"), self.model.with_suffix(".param"))
            shutil.copy(Path(folder, "m.ncnn.bin"), self.model)

    def load(self) -> None:
        self.net = self.api.Net()
        self.net.opt.num_threads = self.threads
        self.net.opt.use_vulkan_compute = False
        self.net.opt.use_bf16_storage = self.halved
        if self.net.load_param(str(self.model.with_suffix(".param"))) or self.net.load_model(str(self.model)):
            raise RuntimeError("ncnn cannot load the files that pnnx wrote")
        axis = re.search(r"batch_index=(\d+)", self.model.with_suffix(".py").read_text())
        if axis is None:
            raise RuntimeError("pnnx's script does not name the batch axis")
        self.batch_axis = int(axis[1])

    def run(self, inputs: dict[str, Any]) -> list[Any]:
        extractor = self.net.create_extractor()
        for name, array in zip(self.net.input_names(), inputs.values(), strict=True):
            given = array.astype(np.int32) if array.dtype == np.int64 else array
            extractor.input(name, self.api.Mat(given, batch_index=self.batch_axis).clone())
        return [np.array(extractor.extract(name)[1]) for name in self.net.output_names()]


class NcnnBf16(Ncnn):
    name, precision, halved = "ncnn-bf16", "bfloat16", True


class OpenVino(Engine):
    name = "openvino"
    packages: ClassVar[tuple[str, ...]] = ("openvino",)
    hint: ClassVar[str] = "f32"

    def imports(self) -> None:
        import openvino

        self.api = openvino

    def load(self) -> None:
        settings = {
            "INFERENCE_NUM_THREADS": self.threads,
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": self.hint,
        }
        self.compiled = self.api.Core().compile_model(str(self.model), "CPU", settings)
        self.request = self.compiled.create_infer_request()

    def run(self, inputs: dict[str, Any]) -> list[Any]:
        found = self.request.infer(inputs, share_inputs=True)
        return [np.array(found[name]) for name in self.entry["outputs"]]


class OpenVinoBf16(OpenVino):
    name, precision, hint = "openvino-bf16", "bfloat16", "bf16"


class OpenVinoInt8(OpenVino):
    name, packages, precision = "openvino-int8", ("openvino", "onnxruntime"), "int8"

    def convert(self) -> None:
        self.model = quantised(self.model, self.entry)


class Torch(Engine):
    """PyTorch: traced, frozen and optimised for inference."""

    name, packages = "torch", ("torch",)

    def imports(self) -> None:
        import torch

        self.api = torch
        torch.set_num_threads(self.threads)

    def load(self) -> None:
        from benchmarks.fig10.torch_graph import TorchGraph

        jit, inputs = self.api.jit, tuple(map(self.api.from_numpy, inputs_of(self.entry).values()))
        with self.api.inference_mode():
            traced = jit.trace(TorchGraph(self.model).eval(), inputs, check_trace=False)
            self.net = jit.optimize_for_inference(jit.freeze(traced))

    def run(self, inputs: dict[str, Any]) -> list[Any]:
        with self.api.inference_mode():
            return [value.numpy() for value in self.net(*map(self.api.from_numpy, inputs.values()))]


_ALL: tuple[type[Engine], ...] = (
    Walle, OnnxRuntime, Mnn, OpenVino, Ncnn, Torch, WalleBf16, OpenVinoBf16, NcnnBf16, MnnLow, WalleInt8,
    OnnxRuntimeInt8, OpenVinoInt8,
)  # fmt: skip
ENGINES = {engine.name: engine for engine in _ALL}


def inputs_of(entry: dict[str, Any]) -> dict[str, Any]:
    """Return seeded inputs for a manifest's entry: normally distributed floats, and integers 0 and 1."""
    random = np.random.default_rng(11)
    return {
        name: random.integers(0, 2, shape) if dtype == "int64" else random.standard_normal(shape).astype(np.float32)
        for name, (shape, dtype) in entry["inputs"].items()
    }

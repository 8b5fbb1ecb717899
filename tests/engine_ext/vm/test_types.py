"""Protection of the native module: its types and functions give a task no way to harm the process."""

from pathlib import Path

import pytest

from tests.sim.vm_task import write_task
from walle.vm import VM, TaskError

WAY_IN = """
import json
import walle.np as np

real = json.dumps.__globals__["__builtins__"]
sys = real["__import__"]("sys")
_core = sys.modules["walle.engine_ext._core"]
base = np.ndarray.__base__
meta = type(np.ndarray)
record = type(_core.unary.__self__)

class Fake:
    __class__ = np.ndarray
    def _pybind11_conduit_v1_(self, *given):
        return given[1]

def alive():
    return float(np.sum(np.ones((4, 4)))), repr(np.ndarray(bytearray(2)))
"""
DEEDS = {
    "base": "base.__new__(base)",
    "array_of_base": "base.__new__(np.ndarray)",
    "session": "_core.Session.__new__(_core.Session).inputs()",
    "session_by_type": "type.__call__(_core.Session, b'', 'auto')",
    "subclass": "type('T', (base,), {'__init__': lambda self: None})()",
    "subclass_of_array": "type('T', (np.ndarray,), {})",
    "metatype": "meta('T', (), {})",
    "metatype_by_type": "type.__new__(meta, 'T', (), {})",
    "record": "record()",
    "record_new": "record.__new__(record)",
    "subclass_of_record": "type('T', (record,), {})",
    "other_class": "setattr(np.ones((2,)), '__class__', _core.Session)",
    "attribute": "setattr(np.ndarray, 'sum', None)",
    "array_for_session": "_core.Session.run(np.ones((2,)), {})",
    "fake_session": "_core.Session.run(Fake(), {})",
    "fake_array": "np.ndarray.reshape(Fake(), 3)",
    "fake_argument": "np.add(Fake(), 1)",
    "fake_result": "Fake()",
    "iterator": "type(iter(np.ones((2,))))()",
    "iterator_of_object": "object.__new__(type(iter(np.ones((2,)))))",
    "copied_iterator": "json.dumps.__globals__['__builtins__']['__import__']('copy').copy(iter(np.ones((2,))))",
    "wide_view": "_core.as_strided(np.ones((2,)), (1 << 40,), (4,))",
}


@pytest.mark.asyncio
async def test_objects_without_a_cpp_object_are_neither_created_nor_accepted(tmp_path: Path) -> None:
    functions = "".join(f"def do_{name}():\n    return {deed}\n" for name, deed in DEEDS.items())
    vm = VM(write_task(tmp_path, WAY_IN + functions))
    for name in DEEDS:
        with pytest.raises(TaskError) as refusal:
            await vm.call(f"do_{name}")
        assert refusal.value.type_name in {"TypeError", "RuntimeError", "ShapeError"}, (name, refusal.value)
    assert await vm.call("alive") == (16.0, "array([0, 0], dtype=uint8)")
    vm.close()


@pytest.mark.asyncio
async def test_the_native_module_in_a_vm_has_no_function_that_acts_on_the_process(tmp_path: Path) -> None:
    names = "def names(): return sorted(vars(_core)), sorted(vars(real['__import__']('_thread')))\n"
    vm = VM(write_task(tmp_path, WAY_IN + names))
    core, thread = await vm.call("names")
    vm.close()
    assert [name for name in core if name.startswith("vm_")] == ["vm_sleep", "vm_snapshot_size", "vm_used_bytes"]
    rates = {"set_rates", "measure_rates", "peak_gflops"}
    models = {"performance_model", "predicted_times", "set_performance_model"}
    assert not {"VM", "ReplyQueue", "live_storage_bytes", *rates, *models} & set(core)
    assert "interrupt_main" not in thread
    assert {"Session", "ndarray", "evaluate", "call_back"} <= set(core)


CHANGING_SPEC = """
import json
load = json.dumps.__globals__["__builtins__"]["__import__"]

class Spec:
    names = iter(["_string", "_signal"])  # allowed, not allowed
    name = property(lambda self: next(self.names))
    origin = None

def run():
    return load("_imp").create_builtin(Spec()).__name__
"""


@pytest.mark.asyncio
async def test_a_spec_cannot_change_its_name_between_two_reads(tmp_path: Path) -> None:
    vm = VM(write_task(tmp_path, CHANGING_SPEC))
    assert await vm.call("run") == "_string"
    vm.close()

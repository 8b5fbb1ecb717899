// Translation of C++ errors to the Python classes of walle.engine_ext.errors. The classes are looked up for each error: every VM
// has its own interpreter, so that no Python object may be cached in a C++ static.
#include "bindings/bind.h"
#include "core/work_context.h"
#include "vm/interpreter.h"
#include "vm/task_vm.h"

namespace py = pybind11;

namespace walle {

namespace {
const char* class_name(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::model: return "ModelError";
    case ErrorKind::shape: return "ShapeError";
    case ErrorKind::dtype: return "DTypeError";
    case ErrorKind::unsupported: return "UnsupportedError";
    case ErrorKind::backend: return "BackendError";
  }
  return "ModelError";
}
}  // namespace

void bind_errors(py::module_&) {
  py::register_local_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const Error& error) {
      const auto type = py::module_::import("walle.engine_ext.errors").attr(class_name(error.kind()));
      PyErr_SetString(type.ptr(), error.what());
    } catch (const WorkStopped& stopped) {
      if (stopped.reason() == StopReason::cancelled || stopped.reason() == StopReason::deadline) {
        const char* name = stopped.reason() == StopReason::cancelled ? "RunCancelled" : "RunDeadlineExceeded";
        PyErr_SetString(py::module_::import("walle.engine_ext.errors").attr(name).ptr(), stopped.what());
        return;
      }
      // Of a VM: not an Exception, which the task could handle as a failure of the operator.
      const vm::TaskVm* task_vm = vm::TaskVm::current();
      PyErr_SetString(task_vm != nullptr ? task_vm->interpreter().stopped : PyExc_RuntimeError, stopped.what());
    }
  });
}

}  // namespace walle

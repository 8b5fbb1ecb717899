// C++ errors become the Python classes of walle.engine_ext.errors, found anew in each interpreter: nothing Python is cached in
// a C++ static, because every VM has its own interpreter.
#include "bindings/bind.h"
#include "core/work_context.h"
#include "vm/home.h"
#include "vm/interpreter.h"

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
    } catch (const WorkStopped& stopped) {  // not an Exception, which the task may take for a failure of the operator
      const vm::Interpreter* here = vm::Interpreter::here();
      PyErr_SetString(here != nullptr ? here->home().stopped : PyExc_RuntimeError, stopped.what());
    }
  });
}

}  // namespace walle

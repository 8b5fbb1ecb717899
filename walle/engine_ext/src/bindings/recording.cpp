#include "bindings/recording.h"

namespace py = pybind11;

namespace walle {

bool has_recorded(py::handle items) {
  if (array_types().recorded == nullptr || !(PyList_Check(items.ptr()) || PyTuple_Check(items.ptr()))) return false;
  const Py_ssize_t count = PySequence_Fast_GET_SIZE(items.ptr());
  for (Py_ssize_t i = 0; i < count; ++i)
    if (is_recorded(PySequence_Fast_GET_ITEM(items.ptr(), i))) return true;
  return false;
}

void bind_recording(py::module_& module) {
  module.def(
      "set_recorder",
      [](const py::type& recorded, const py::function& recorder) {
        ArrayTypes& types = mutable_array_types();
        if (types.recorded != nullptr) throw std::runtime_error("the recorder of this interpreter is set already");
        Py_XSETREF(types.recorded, reinterpret_cast<PyTypeObject*>(Py_NewRef(recorded.ptr())));
        Py_XSETREF(types.recorder, Py_NewRef(recorder.ptr()));
      },
      py::arg("recorded"), py::arg("recorder"),
      "Pass operations on objects of that class to the function: the operation's name, then its arguments.");
}

}  // namespace walle

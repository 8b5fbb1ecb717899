#include "vm/monitoring.h"

#include <bit>
#include <stdexcept>

namespace walle::vm {

namespace {

constexpr long kTools = 6;

bool is_none(PyObject* object) { return object == nullptr || object == Py_None; }

}  // namespace

bool has_local_events(PyCodeObject* code) {
  // The first member of its monitoring data; the rest differs between versions of Python.
  if (const auto* local = reinterpret_cast<const _Py_LocalMonitors*>(code->_co_monitoring))
    for (const auto tools : local->tools)
      if (tools != 0) return true;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(code->co_consts); ++i) {
    PyObject* constant = PyTuple_GET_ITEM(code->co_consts, i);
    if (PyCode_Check(constant) && has_local_events(reinterpret_cast<PyCodeObject*>(constant))) return true;
  }
  return false;
}

void Monitoring::take() {
  constexpr std::array<const char*, kFunctions> kNames = {"get_tool",   "use_tool_id", "free_tool_id",
                                                          "get_events", "set_events",  "register_callback"};
  PyObject* monitoring = PySys_GetObject("monitoring");
  PyObject* events = monitoring != nullptr ? PyObject_GetAttrString(monitoring, "events") : nullptr;
  PyObject* names = events != nullptr ? PyObject_Dir(events) : nullptr;
  for (Py_ssize_t i = 0; names != nullptr && i < PyList_GET_SIZE(names); ++i) {
    PyObject* event = PyObject_GetAttr(events, PyList_GET_ITEM(names, i));
    if (event != nullptr && PyLong_CheckExact(event) && std::has_single_bit(PyLong_AsUnsignedLongMask(event)))
      events_.push_back(Py_NewRef(event));
    Py_XDECREF(event);
  }
  bool is_complete = !events_.empty();
  for (std::size_t i = 0; i < kFunctions && is_complete; ++i) {
    functions_[i] = PyObject_GetAttrString(monitoring, kNames[i]);
    is_complete = functions_[i] != nullptr;
  }
  Py_XDECREF(names);
  Py_XDECREF(events);
  PyErr_Clear();
  if (!is_complete) throw std::runtime_error("sys.monitoring lacks a function that resets need");
}

PyObject* Monitoring::call(Function function, long tool, PyObject* first, PyObject* second) {
  PyObject* number = PyLong_FromLong(tool);
  PyObject* result =
      number != nullptr ? PyObject_CallFunctionObjArgs(functions_[function], number, first, second, nullptr) : nullptr;
  Py_XDECREF(number);
  PyErr_Clear();
  return result;
}

bool Monitoring::clear_tool(long tool) {
  PyObject* name = call(kGetTool, tool);
  bool had_any = !is_none(name);
  // Only for a tool that is in use can callbacks and events be read and removed.
  PyObject* reset = had_any ? nullptr : PyUnicode_FromString("reset");
  if (reset != nullptr) Py_XDECREF(call(kUseTool, tool, reset));
  for (PyObject* event : events_) {
    PyObject* callback = call(kRegister, tool, event, Py_None);
    had_any = had_any || !is_none(callback);
    Py_XDECREF(callback);
  }
  PyObject* events = call(kGetEvents, tool);
  PyObject* zero = PyLong_FromLong(0);
  if (events != nullptr && PyLong_AsLong(events) != 0) {
    had_any = true;
    Py_XDECREF(call(kSetEvents, tool, zero));
  }
  Py_XDECREF(call(kFreeTool, tool));
  Py_XDECREF(zero);
  Py_XDECREF(events);
  Py_XDECREF(reset);
  Py_XDECREF(name);
  return had_any;
}

bool Monitoring::clear() {
  const PyThreadState* thread = PyThreadState_Get();
  bool had_any = thread->c_tracefunc != nullptr || thread->c_profilefunc != nullptr;
  PyEval_SetTrace(nullptr, nullptr);
  PyEval_SetProfile(nullptr, nullptr);
  for (long tool = 0; tool < kTools; ++tool) had_any = clear_tool(tool) || had_any;
  return had_any;
}

}  // namespace walle::vm

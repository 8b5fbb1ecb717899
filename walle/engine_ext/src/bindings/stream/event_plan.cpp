// Only exact built-in types are read and made, so that no Python code runs; the memory of a plan is counted.
#include "bindings/stream/event_plan.h"

#include "bindings/stream/plan_computation.h"

namespace walle::columns {

namespace {

// Returns null with a Python error where the arguments are not a plan and a dict.
const Plan* checked_plan(PyObject* object, PyObject* values) {
  if (Py_TYPE(object)->tp_dealloc != static_cast<destructor>(dealloc<Plan>)) {
    PyErr_Format(PyExc_TypeError, "a plan is made by compile_plan, not %.200s", Py_TYPE(object)->tp_name);
    return nullptr;
  }
  if (PyDict_CheckExact(values)) return reinterpret_cast<Object<Plan>*>(object)->state;
  PyErr_Format(PyExc_TypeError, "the values of a plan are a dict, not %.200s", Py_TYPE(values)->tp_name);
  return nullptr;
}

[[noreturn]] void refuse_missing() {
  throw EventFault{"plan", "has no result for these events; give its template the option otherwise"};
}

}  // namespace

PyObject* run_plan(PyObject* object, const View& view, PyObject* values) {
  const Plan* plan = checked_plan(object, values);
  if (plan == nullptr) return nullptr;
  try {
    ObjectResults results(*view.batch);
    if (Computation(view, *plan, values, results).compute(plan->root) == Outcome::missing) refuse_missing();
    return results.take();
  } catch (const PythonError&) {
    return nullptr;
  }
}

PyObject* encode_plan(PyObject* object, const View& view, PyObject* values) {
  const Plan* plan = checked_plan(object, values);
  if (plan == nullptr) return nullptr;
  try {
    PackedResults results(*view.batch->events);
    if (Computation(view, *plan, values, results).compute(plan->root) == Outcome::missing) refuse_missing();
    return results.take(plan->encoded_type);
  } catch (const PythonError&) {
    return nullptr;
  }
}

}  // namespace walle::columns

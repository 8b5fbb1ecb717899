#include "vm/task_code.h"

#include <utility>

namespace walle::vm {

namespace {

thread_local TaskCode* watching = nullptr;  // an interpreter has one thread

const char* name_of_code(PyObject* object) {
  if (PyGen_CheckExact(object)) return "gi_code";
  if (PyCoro_CheckExact(object)) return "cr_code";
  return PyAsyncGen_CheckExact(object) ? "ag_code" : nullptr;
}

}  // namespace

void TaskCode::add(PyObject* object) {
  if (PyFunction_Check(object)) {
    codes_.insert(PyFunction_GET_CODE(object));
  } else if (const char* name = name_of_code(object); name != nullptr) {
    PyObject* code = PyObject_GetAttrString(object, name);
    if (code != nullptr) codes_.insert(code);
    Py_XDECREF(code);  // the generator holds it
    PyErr_Clear();
  }
}

PyObject* TaskCode::evaluate(PyThreadState* thread, struct _PyInterpreterFrame* frame, int thrown) {
  if (TaskCode* task = watching; task != nullptr) {
    PyObject* code = PyUnstable_InterpreterFrame_GetCode(frame);
    task->has_run_ = task->has_run_ || task->codes_.contains(code);
    Py_XDECREF(code);
  }
  return _PyEval_EvalFrameDefault(thread, frame, thrown);
}

void TaskCode::watch() {
  watching = this;
  is_watching_ = true;
  _PyInterpreterState_SetEvalFrameFunc(PyInterpreterState_Get(), evaluate);
}

bool TaskCode::end() {
  if (std::exchange(is_watching_, false)) {
    _PyInterpreterState_SetEvalFrameFunc(PyInterpreterState_Get(), _PyEval_EvalFrameDefault);
    watching = nullptr;
  }
  codes_.clear();
  return std::exchange(has_run_, false);
}

}  // namespace walle::vm

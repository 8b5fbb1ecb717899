// Code of a task that runs where only the library's may.
#pragma once
#include <Python.h>

#include <unordered_set>

namespace walle::vm {

// CPython asks the class of a task whether it has a subclass (`__subclasshook__`), and calls a task's finalizer, in the midst of
// library code. One for each interpreter, used under its GIL on its one thread.
class TaskCode {
 public:
  TaskCode() = default;
  TaskCode(const TaskCode&) = delete;
  TaskCode& operator=(const TaskCode&) = delete;

  // Adds the code of a function, generator or coroutine, which must outlive the watch; ignores other objects.
  void add(PyObject* object);
  // Watches all Python code that this interpreter begins to run.
  void watch();
  // Ends the watch and drops what was added. Returns whether any of it ran.
  bool end();

 private:
  static PyObject* evaluate(PyThreadState* thread, struct _PyInterpreterFrame* frame, int thrown);

  std::unordered_set<PyObject*> codes_;
  bool is_watching_ = false;
  bool has_run_ = false;
};

}  // namespace walle::vm

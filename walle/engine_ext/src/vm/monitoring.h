// Hooks by which code of a task runs within other code: trace and profile functions, and events of `sys.monitoring`.
#pragma once
#include <Python.h>

#include <array>
#include <cstddef>
#include <vector>

namespace walle::vm {

// Returns whether events of `sys.monitoring` are set for this code alone, or for code within it. They slow it down also where no
// tool has callbacks, and only their tool could remove them.
bool has_local_events(PyCodeObject* code);

// Uses the functions of `sys.monitoring` that it found at `take`, because a task may replace them. Under the GIL of their
// interpreter.
class Monitoring {
 public:
  // Throws std::runtime_error where `sys.monitoring` lacks one of the functions that are called here.
  void take();
  // Removes all hooks; runs no Python code. Returns whether there were any: a tool that gave its number back counts, whose
  // callbacks CPython keeps calling.
  bool clear();

 private:
  enum Function : std::size_t { kGetTool, kUseTool, kFreeTool, kGetEvents, kSetEvents, kRegister, kFunctions };

  PyObject* call(Function function, long tool, PyObject* first = nullptr, PyObject* second = nullptr);
  bool clear_tool(long tool);

  std::array<PyObject*, kFunctions> functions_ = {};  // kept for as long as the interpreter
  std::vector<PyObject*> events_;                     // one bit each
};

}  // namespace walle::vm

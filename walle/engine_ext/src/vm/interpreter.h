// An interpreter for VMs: one PyInterpreterState with its own GIL, on the one thread that creates, uses and retires it (§4.3,
// Fig. 6). VMs follow one another in it: it is reset when a VM ends, and discarded only where the reset fails.
#pragma once
#include <Python.h>
#include <pthread.h>

#include <cstddef>
#include <memory>
#include <string>

#include "vm/snapshot.h"

namespace walle::vm {

class InterpreterPool;
class TaskVm;

class Interpreter {
 public:
  // Runs `vm` and those after it in a new interpreter on a new thread, which frees the object when it ends.
  // Throws std::runtime_error where no thread can be created.
  static Interpreter* start(InterpreterPool& pool, const std::shared_ptr<TaskVm>& vm);

  // The interpreter's thread state, thread and functions; set before its first VM starts.
  PyThreadState* thread = nullptr;
  pthread_t thread_handle = {};
  unsigned long thread_id = 0;
  PyObject* start_function = nullptr;
  PyObject* dispatch = nullptr;
  PyObject* describe = nullptr;
  PyObject* stopped = nullptr;  // the exception class
  Snapshot snapshot;

  // The next three run on the interpreter's thread, under its GIL.

  // Tries once to release what the last VM left and to restore what it changed; runs its finalizers. Returns why another attempt
  // is needed, or "".
  std::string reset_once(bool& is_out_of_memory);
  // Returns why the interpreter, whose reset has succeeded, cannot be used again, or "".
  std::string verify_reset();
  // Enters a new contextvars context for the next VM.
  void enter_context();

 private:
  friend class InterpreterPool;
  explicit Interpreter(InterpreterPool& pool) : pool_(pool) {}
  void run(std::shared_ptr<TaskVm> vm);
  bool boot(std::string& error);
  void leave_context();
  void retire();

  InterpreterPool& pool_;
  PyObject* reset_function_ = nullptr;
  PyObject* freeze_ = nullptr;       // gc.freeze
  PyObject* context_ = nullptr;      // a context of contextvars
  std::shared_ptr<TaskVm> next_vm_;  // this one and the next two are guarded by the pool's mutex
  bool is_releasing_ = false;        // counted by the pool
  bool is_detached_ = false;
  bool is_restored_ = false;  // the last attempt succeeded: its last round ran no code of the task
};

}  // namespace walle::vm

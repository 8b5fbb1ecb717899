#include "vm/interpreter.h"

#include <marshal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <stdexcept>
#include <utility>

#include "core/blocks.h"
#include "vm/array_loans.h"
#include "vm/create_interpreter.h"
#include "vm/interpreter_pool.h"
#include "vm/task_vm.h"
#include "vm/thread.h"

namespace walle::vm {

namespace {

constexpr int kRounds = 4;  // rounds of a reset: finalizers may change things again
// Reserved, not used. Deep recursion in C is stopped by CPython's own limit, except for nested iterators (`map`, `filter`), each
// of which takes about as much of the stack as of the task's memory. This holds those of the usual memory limit, 32 MB.
constexpr std::size_t kStackBytes = std::size_t{96} << 20;
constexpr std::size_t kKeptStackBytes = std::size_t{1} << 20;

PyObject* find_module(PyObject*, PyObject* name) {
  const char* text = PyUnicode_AsUTF8(name);
  if (text == nullptr) return nullptr;
  const InterpreterPool& pool = InterpreterPool::instance();
  const auto module = pool.find_module(text);
  return module != nullptr ? to_python(*module, pool.port()) : Py_NewRef(Py_None);
}

PyMethodDef find_module_method = {"find_module", find_module, METH_O, nullptr};

// Returns the part of this thread's stack that is not in use to the system.
void trim_stack() {
  pthread_attr_t attributes;
  if (pthread_getattr_np(pthread_self(), &attributes) != 0) return;
  void* lowest = nullptr;
  std::size_t size = 0;
  if (pthread_attr_getstack(&attributes, &lowest, &size) == 0) {
    const auto begin = reinterpret_cast<std::uintptr_t>(lowest), top = reinterpret_cast<std::uintptr_t>(&attributes);
    const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
    if (top > begin + kKeptStackBytes) madvise(lowest, (top - begin - kKeptStackBytes) / page * page, MADV_DONTNEED);
  }
  pthread_attr_destroy(&attributes);
}

}  // namespace

Interpreter* Interpreter::start(InterpreterPool& pool, const std::shared_ptr<TaskVm>& vm) {
  using Start = std::pair<Interpreter*, std::shared_ptr<TaskVm>>;
  auto* interpreter = new Interpreter(pool);
  auto* start = new Start(interpreter, vm);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_attr_setstacksize(&attributes, kStackBytes);
  const auto body = [](void* argument) -> void* {
    std::unique_ptr<Start> owned(static_cast<Start*>(argument));
    guard_thread([&] { owned->first->run(std::move(owned->second)); });
    return nullptr;
  };
  const int failed = pthread_create(&interpreter->thread_handle, &attributes, body, start);
  pthread_attr_destroy(&attributes);
  if (failed != 0) {
    delete start;
    delete interpreter;
    throw std::runtime_error("the system cannot create a thread for a VM");
  }
  return interpreter;
}

void Interpreter::run(std::shared_ptr<TaskVm> vm) {
  std::string error;
  thread_handle = pthread_self();
  PyThreadState* created = create_interpreter([&] { return vm->is_starting(); }, error);
  bool is_booted = false;
  if (created != nullptr) {
    thread = created;
    thread_id = PyThread_get_thread_ident();
    pool_.count_created();
    is_booted = boot(error);
    PyEval_SaveThread();
  }
  if (!is_booted) {
    if (created != nullptr) pool_.discard(*this, error);
    vm->fail_start(error);
  } else {
    std::string reason;
    while (vm && reason.empty()) {
      reason = vm->run_in(*this);
      trim_stack();
      free_cached_blocks();  // an idle interpreter keeps none of the last VM's arrays
      if (reason.empty())
        pool_.put_back(*this);
      else
        pool_.discard(*this, reason);
      vm->end();
      vm.reset();
      if (reason.empty()) vm = pool_.next_vm(*this);
    }
  }
  vm.reset();
  if (created != nullptr) retire();
  pool_.remove(*this);
  delete this;
}

bool Interpreter::boot(std::string& error) {
  const Boot& boot = pool_.boot();
  PyObject* globals = PyDict_New();
  PyObject* paths = to_python(boot.paths, pool_.port());
  PyObject* finder = PyCFunction_New(&find_module_method, nullptr);
  PyObject* code = PyMarshal_ReadObjectFromString(boot.code.data(), static_cast<Py_ssize_t>(boot.code.size()));
  const bool ready = globals != nullptr && paths != nullptr && finder != nullptr && code != nullptr &&
                     PyDict_SetItemString(globals, "__builtins__", PyEval_GetBuiltins()) == 0 &&
                     PyDict_SetItemString(globals, "paths", paths) == 0 &&
                     PyDict_SetItemString(globals, "find_module", finder) == 0;
  PyObject* done = ready ? PyEval_EvalCode(code, globals, globals) : nullptr;
  bool good = done != nullptr;
  if (good) {
    const std::pair<const char*, PyObject**> functions[] = {{"start", &start_function},  {"dispatch", &dispatch},
                                                            {"describe", &describe},     {"Stopped", &stopped},
                                                            {"reset", &reset_function_}, {"freeze", &freeze_}};
    for (const auto& [name, place] : functions) {
      *place = Py_XNewRef(PyDict_GetItemString(globals, name));
      good = good && *place != nullptr;
    }
  }
  if (!good) error = "the VM could not start: " + take_error_text();
  Py_XDECREF(done);
  Py_XDECREF(code);
  Py_XDECREF(finder);
  Py_XDECREF(paths);
  Py_XDECREF(globals);
  if (good) {
    PyObject* first = PyObject_CallNoArgs(reset_function_);  // collects what booting left
    Py_XDECREF(first);
    PyErr_Clear();
    snapshot.take();
    is_restored_ = true;
    const std::string difference = verify_reset();
    if (!difference.empty()) error = "the VM could not start: its state changed after boot: " + difference;
    good = difference.empty();
  }
  return good;
}

std::string Interpreter::verify_reset() {
  if (!snapshot.taint().empty()) return snapshot.taint();
  std::string difference = snapshot.difference();
  if (difference.empty() && !is_restored_) difference = "code of the task ran in every round of the reset";
  if (!difference.empty()) return difference;
  snapshot.clear_attribute_caches();
  PyObject* done = PyObject_CallNoArgs(freeze_);  // collections then skip the permanent objects, which a task may have unfrozen
  Py_XDECREF(done);
  PyErr_Clear();
  return difference;
}

void Interpreter::enter_context() {
  context_ = PyContext_New();
  if (context_ == nullptr || PyContext_Enter(context_) != 0) PyErr_Clear();
}

void Interpreter::leave_context() {
  if (context_ != nullptr && PyContext_Exit(context_) != 0) PyErr_Clear();
  Py_CLEAR(context_);
}

std::string Interpreter::reset_once(bool& is_out_of_memory) {
  is_restored_ = false;
  for (int round = 0; round < kRounds && !is_restored_; ++round) {
    snapshot.clear_hooks();
    PyObject* done = PyObject_CallNoArgs(reset_function_);
    if (done == nullptr) break;
    Py_DECREF(done);
    leave_context();  // the reset function has muted the output
    PyObject* trash = PyList_New(0);
    if (trash == nullptr) break;
    const int differed = snapshot.restore(trash);
    Py_DECREF(trash);  // runs finalizers, which may be stopped
    if (differed < 0 || PyErr_Occurred() != nullptr) break;
    is_restored_ = round > 0 && differed == 0;
  }
  is_out_of_memory = PyErr_Occurred() != nullptr && PyErr_ExceptionMatches(PyExc_MemoryError) != 0;
  return PyErr_Occurred() == nullptr ? "" : "the reset failed with " + take_error_text();
}

// Deletes the interpreter's record, so that Py_FinalizeEx does not meet it, and leaks what it holds. Py_EndInterpreter would run
// what the task left there (finalizers, audit hooks), which nothing could stop, and CPython 3.13.0 keeps most of the memory even
// then. It also aborts the process where _datetime was loaded, whose static types' tuples it frees in the wrong interpreter.
void Interpreter::retire() {
  PyInterpreterState* interpreter = PyThreadState_GetInterpreter(thread);
  ArrayLoans::forget(PyInterpreterState_GetID(interpreter));
  PyInterpreterState_Delete(interpreter);
}

}  // namespace walle::vm

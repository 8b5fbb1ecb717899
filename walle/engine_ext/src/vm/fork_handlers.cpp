#include "vm/fork_handlers.h"

#include <Python.h>
#include <dlfcn.h>
#include <pthread.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>

#include "core/fork_mutex.h"
#include "vm/array_loans.h"
#include "vm/create_interpreter.h"
#include "vm/interpreter_pool.h"
#include "vm/shared_buffers.h"
#include "vm/task_vm.h"
#include "vm/watchdog.h"

namespace walle::vm {

namespace {

// The beginning of `_PyRuntime`, from which debuggers learn where CPython's fields are (struct _Py_DebugOffsets, since 3.13).
struct DebugOffsets {
  char cookie[8];
  std::uint64_t version;  // PY_VERSION_HEX
  std::uint64_t free_threaded;
  struct {
    std::uint64_t size, finalizing, interpreters_head;
  } runtime;
  struct {
    std::uint64_t size, id, next;
  } interpreter;
};

// Removes all interpreters but the main one from the runtime's list. In the child, PyOS_AfterFork_Child deletes every other
// interpreter. It clears them while it holds the lock of the list, which clearing takes again: it deadlocks (CPython issues
// 84139, 101437; in other builds it crashes, 139759). No thread runs in those interpreters here, and their memory is the
// parent's, shared until written.
void unlist_interpreters() {
  auto* runtime = static_cast<std::byte*>(dlsym(RTLD_DEFAULT, "_PyRuntime"));
  if (runtime == nullptr) return;
  DebugOffsets offsets;
  std::memcpy(&offsets, runtime, sizeof offsets);
  const bool is_known =
      std::memcmp(offsets.cookie, "xdebugpy", sizeof offsets.cookie) == 0 && offsets.version >> 16 == PY_VERSION_HEX >> 16;
  if (!is_known) return;
  PyInterpreterState* main = PyInterpreterState_Main();
  const auto head = runtime + offsets.runtime.interpreters_head;
  const auto next = reinterpret_cast<std::byte*>(main) + offsets.interpreter.next;
  PyInterpreterState* none = nullptr;
  std::memcpy(head, &main, sizeof main);
  std::memcpy(next, &none, sizeof none);
}

// Holds all locks over the fork, so that what they guard is consistent in the child, and takes them in the order in which they
// nest. The engine's come first: a thread that packs weights may reach its memory limit, which sets an alarm.
void prepare() {
  ForkMutex::lock_all();
  TaskVm::before_fork();
  InterpreterPool::instance().before_fork();
  Watchdog::instance().before_fork();
  lock_loans_for_fork();
  lock_shared_buffers_for_fork();
}

void resume(bool is_child) {
  unlock_shared_buffers_after_fork(is_child);
  unlock_loans_after_fork();
  Watchdog::instance().after_fork(is_child);
  InterpreterPool::instance().after_fork(is_child);
  TaskVm::after_fork(is_child);
  ForkMutex::unlock_all();
}

void resume_in_child() {
  unlist_interpreters();
  reset_creation_after_fork();
  resume(true);
}

}  // namespace

void install_fork_handlers() {
  static std::once_flag once;
  std::call_once(once, [] { pthread_atfork(prepare, [] { resume(false); }, resume_in_child); });
}

}  // namespace walle::vm

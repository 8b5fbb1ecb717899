#include "vm/forking.h"

#include <Python.h>
#include <dlfcn.h>
#include <pthread.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>

#include "core/fork_mutex.h"
#include "vm/birth.h"
#include "vm/home.h"
#include "vm/interpreter.h"
#include "vm/lending.h"
#include "vm/watchdog.h"

namespace walle::vm {

namespace {

// How CPython tells debuggers where things are (struct _Py_DebugOffsets, since 3.13): the beginning of `_PyRuntime`.
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

// In the child, PyOS_AfterFork_Child deletes every interpreter but the main one. It clears them while it holds the lock of their
// list, which clearing takes again: it waits for ever (CPython issues 84139, 101437; in other builds it crashes, 139759). Nobody
// runs in those interpreters here, so they are taken off the list before: their memory is the parent's, shared until written.
void forget_interpreters() {
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

// The locks are held over the fork, so that what they guard is whole in the child; in the order in which they nest. The engine's
// come first: a thread that packs weights may meet its memory limit, which sets an alarm.
void prepare() {
  ForkMutex::hold_all();
  Interpreter::before_fork();
  Home::before_fork();
  Watchdog::instance().before_fork();
  lenders_before_fork();
}

void resume(bool is_child) {
  lenders_after_fork();
  Watchdog::instance().after_fork(is_child);
  Home::after_fork(is_child);
  Interpreter::after_fork(is_child);
  ForkMutex::let_go_of_all();
}

void resume_in_child() {
  forget_interpreters();
  birth_after_fork();
  resume(true);
}

}  // namespace

void watch_forks() {
  static std::once_flag once;
  std::call_once(once, [] { pthread_atfork(prepare, [] { resume(false); }, resume_in_child); });
}

}  // namespace walle::vm

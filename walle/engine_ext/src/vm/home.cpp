#include "vm/home.h"

#include <marshal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

#include "core/blocks.h"
#include "vm/birth.h"
#include "vm/forking.h"
#include "vm/interpreter.h"
#include "vm/lending.h"
#include "vm/thread.h"

namespace walle::vm {

namespace {

constexpr const char* kNoThread = "no thread can be had for a VM";
constexpr const char* kNoHome =
    "hundreds of interpreters were lost, mostly spoilt by tasks; no new one is made, restart the process";
constexpr int kRounds = 4;  // of wiping: finalizers may change things again
// Reserved, not used. Deep recursion in C ends by CPython's own limit, but for iterators that are wrapped again and again (`map`,
// `filter`), each of which takes about as much of the stack as of the task's memory: it holds those of the usual limit, 32 MB.
constexpr std::size_t kStackBytes = std::size_t{96} << 20;
constexpr std::size_t kStackKept = std::size_t{1} << 20;

// Process-wide, never destroyed: homes of abandoned VMs may reach it while the process exits.
struct Stable {
  std::mutex mutex;
  std::condition_variable changed;
  Boot boot;
  const ArrayPort* port = nullptr;
  std::map<std::string, std::shared_ptr<const Value>, std::less<>> carried;  // modules by name
  std::vector<Home*> all;                                                    // until they end
  std::vector<Home*> spare;                          // the one that was used last is taken first: its memory is warm
  std::deque<std::shared_ptr<Interpreter>> waiting;  // each for one of the homes that are being left
  std::size_t leaving = 0;
  bool closed = false;
  HomeCounts counts;
};

Stable& stable() {
  static Stable& one = *new Stable();
  return one;
}

PyObject* find_module(PyObject*, PyObject* name) {
  const char* text = PyUnicode_AsUTF8(name);
  if (text == nullptr) return nullptr;
  std::shared_ptr<const Value> module;
  {
    const std::lock_guard lock(stable().mutex);
    const auto found = stable().carried.find(std::string_view(text));
    if (found != stable().carried.end()) module = found->second;
  }
  return module != nullptr ? to_python(*module, *stable().port) : Py_NewRef(Py_None);
}

PyMethodDef find_module_method = {"find_module", find_module, METH_O, nullptr};

// What a task used of this thread's stack and nobody uses now goes back to the system.
void give_back_stack() {
  pthread_attr_t attributes;
  if (pthread_getattr_np(pthread_self(), &attributes) != 0) return;
  void* lowest = nullptr;
  std::size_t size = 0;
  if (pthread_attr_getstack(&attributes, &lowest, &size) == 0) {
    const auto begin = reinterpret_cast<std::uintptr_t>(lowest), here = reinterpret_cast<std::uintptr_t>(&attributes);
    const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
    if (here > begin + kStackKept) madvise(lowest, (here - begin - kStackKept) / page * page, MADV_DONTNEED);
  }
  pthread_attr_destroy(&attributes);
}

}  // namespace

std::string take_error_text() {
  PyObject* error = PyErr_GetRaisedException();
  if (error == nullptr) return "unknown error";
  std::string text = Py_TYPE(error)->tp_name;
  PyObject* message = PyObject_Str(error);
  if (const char* utf8 = message != nullptr ? PyUnicode_AsUTF8(message) : nullptr) text += std::string(": ") + utf8;
  PyErr_Clear();
  Py_XDECREF(message);
  Py_DECREF(error);
  return text;
}

void Home::set_boot(Boot boot, const ArrayPort& port) {
  Stable& all = stable();
  const std::lock_guard lock(all.mutex);
  if (all.port != nullptr) return;
  all.boot = std::move(boot);
  all.port = &port;
  watch_forks();
}

void Home::carry(const std::string& name, Value module) {
  auto carried = std::make_shared<const Value>(std::move(module));
  const std::lock_guard lock(stable().mutex);
  stable().carried.insert_or_assign(name, std::move(carried));
}

void Home::settle(const std::shared_ptr<Interpreter>& vm) {
  Stable& all = stable();
  const std::lock_guard lock(all.mutex);
  ++all.counts.lived_in;
  if (!all.spare.empty()) {
    all.spare.back()->next_ = vm;
    all.spare.pop_back();
    all.changed.notify_all();
  } else if (all.waiting.size() < all.leaving) {
    all.waiting.push_back(vm);  // wiping takes less than making does
  } else {
    make(vm);
  }
}

void Home::expect(Home& home) {
  const std::lock_guard lock(stable().mutex);
  if (!std::exchange(home.is_leaving_, true)) ++stable().leaving;
}

void Home::despair(Home& home) {
  std::vector<std::shared_ptr<Interpreter>> refused;
  std::string why;
  {
    const std::lock_guard lock(stable().mutex);
    if (std::exchange(home.is_leaving_, false)) --stable().leaving;
    why = make_for_excess(refused);
  }
  for (const auto& vm : refused) vm->refuse(why);
}

// With the stable's mutex held, as `make`: homes for those that waited for one that is not to come. Why some are refused.
std::string Home::make_for_excess(std::vector<std::shared_ptr<Interpreter>>& refused) {
  Stable& all = stable();
  std::string why;
  while (all.waiting.size() > all.leaving) {
    auto vm = std::move(all.waiting.back());
    all.waiting.pop_back();
    try {
      make(vm);
    } catch (const std::runtime_error& error) {
      why = error.what();
      refused.push_back(std::move(vm));
    }
  }
  return why;
}

void Home::make(const std::shared_ptr<Interpreter>& vm) {
  if (stable().counts.destroyed >= kMostDestroyed) throw std::runtime_error(kNoHome);
  auto* home = new Home();
  auto* start = new std::pair<Home*, std::shared_ptr<Interpreter>>(home, vm);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_attr_setstacksize(&attributes, kStackBytes);
  const auto body = [](void* given) -> void* {
    std::unique_ptr<std::pair<Home*, std::shared_ptr<Interpreter>>> mine(
        static_cast<std::pair<Home*, std::shared_ptr<Interpreter>>*>(given));
    guard_thread([&] { mine->first->run(std::move(mine->second)); });
    return nullptr;
  };
  const int failed = pthread_create(&home->thread_handle, &attributes, body, start);
  pthread_attr_destroy(&attributes);
  if (failed != 0) {
    delete start;
    delete home;
    throw std::runtime_error(kNoThread);
  }
  stable().all.push_back(home);
}

HomeCounts Home::counts() {
  Stable& all = stable();
  const std::lock_guard lock(all.mutex);
  HomeCounts counts = all.counts;
  counts.threads = all.all.size();
  counts.spare = all.spare.size();
  return counts;
}

void Home::close_all() {
  std::deque<std::shared_ptr<Interpreter>> refused;
  {
    Stable& all = stable();
    const std::lock_guard lock(all.mutex);
    all.closed = true;
    refused.swap(all.waiting);
    all.changed.notify_all();
  }
  for (const auto& vm : refused) vm->refuse("the process is exiting");
}

void Home::wait_all(std::chrono::nanoseconds timeout) {
  Stable& all = stable();
  std::unique_lock lock(all.mutex);
  all.changed.wait_for(lock, timeout, [&] {
    return std::all_of(all.all.begin(), all.all.end(), [](const Home* home) { return home->cut_loose_; });
  });
}

void Home::mark_cut_loose(Home& home) {
  const std::lock_guard lock(stable().mutex);
  home.cut_loose_ = true;
}

void Home::before_fork() { stable().mutex.lock(); }

// What homes hold lies in interpreters that nobody can enter in the child, and stays as it is there.
void Home::after_fork(bool is_child) {
  Stable& all = stable();
  if (is_child) {
    new (&all.changed) std::condition_variable();  // the old one knows waiters that are not there
    new (&all.waiting) std::deque<std::shared_ptr<Interpreter>>();
    all.all.clear();
    all.spare.clear();
    all.leaving = 0;
    all.counts = {};
  }
  all.mutex.unlock();
}

// The home is not wiped, and ends.
void Home::condemn(const std::string& reason) {
  {
    const std::lock_guard lock(stable().mutex);
    ++stable().counts.destroyed;
    stable().counts.last_reason = reason;
  }
  despair(*this);
}

// The home is wiped: the next VM's, or a spare one.
void Home::offer() {
  Stable& all = stable();
  const std::lock_guard lock(all.mutex);
  ++all.counts.recycled;
  if (std::exchange(is_leaving_, false)) --all.leaving;
  if (all.waiting.empty()) {
    all.spare.push_back(this);
  } else {
    next_ = std::move(all.waiting.front());
    all.waiting.pop_front();
  }
}

std::shared_ptr<Interpreter> Home::next_vm() {
  Stable& all = stable();
  std::unique_lock lock(all.mutex);
  all.changed.wait(lock, [&] { return next_ != nullptr || all.closed; });
  if (next_ == nullptr) std::erase(all.spare, this);
  return std::exchange(next_, nullptr);
}

void Home::run(std::shared_ptr<Interpreter> vm) {
  std::string error;
  thread_handle = pthread_self();
  PyThreadState* made = make_interpreter([&] { return vm->is_wanted(); }, error);
  bool good = false;
  if (made != nullptr) {
    thread = made;
    thread_id = PyThread_get_thread_ident();
    {
      const std::lock_guard lock(stable().mutex);
      ++stable().counts.made;
    }
    good = boot(error);
    PyEval_SaveThread();
  }
  if (!good) {
    if (made != nullptr) condemn(error);
    vm->refuse(error);
  } else {
    std::string reason;
    while (vm && reason.empty()) {
      reason = vm->live(*this);
      give_back_stack();
      free_spare_blocks();  // a home that waits for the next VM keeps none of the last one's arrays
      if (reason.empty())
        offer();
      else
        condemn(reason);
      vm->leave();
      vm.reset();
      if (reason.empty()) vm = next_vm();
    }
  }
  vm.reset();
  if (made != nullptr) end();
  {
    const std::lock_guard lock(stable().mutex);
    std::erase(stable().all, this);
    stable().changed.notify_all();
  }
  delete this;
}

bool Home::boot(std::string& error) {
  const Boot& the = stable().boot;  // set before the first home
  PyObject* globals = PyDict_New();
  PyObject* paths = to_python(the.paths, *stable().port);
  PyObject* finder = PyCFunction_New(&find_module_method, nullptr);
  PyObject* code = PyMarshal_ReadObjectFromString(the.code.data(), static_cast<Py_ssize_t>(the.code.size()));
  const bool ready = globals != nullptr && paths != nullptr && finder != nullptr && code != nullptr &&
                     PyDict_SetItemString(globals, "__builtins__", PyEval_GetBuiltins()) == 0 &&
                     PyDict_SetItemString(globals, "paths", paths) == 0 &&
                     PyDict_SetItemString(globals, "find_module", finder) == 0;
  PyObject* done = ready ? PyEval_EvalCode(code, globals, globals) : nullptr;
  bool good = done != nullptr;
  if (good) {
    const std::pair<const char*, PyObject**> found[] = {{"start", &start},     {"dispatch", &dispatch}, {"describe", &describe},
                                                        {"Stopped", &stopped}, {"wipe", &wipe_},        {"freeze", &freeze_}};
    for (const auto& [name, place] : found) {
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
    PyObject* first = PyObject_CallNoArgs(wipe_);  // collects what starting left
    Py_XDECREF(first);
    PyErr_Clear();
    pristine.take();
    const std::string left = settle_down();
    if (!left.empty()) error = "the VM could not start: it does not hold still: " + left;
    good = left.empty();
  }
  return good;
}

std::string Home::settle_down() {
  if (!pristine.spoilt().empty()) return pristine.spoilt();
  std::string left = pristine.difference();
  if (!left.empty() || frozen_ == pristine.size()) return left;
  frozen_ = pristine.size();
  PyObject* done = PyObject_CallNoArgs(freeze_);  // what stays for good is not looked at by each collection
  Py_XDECREF(done);
  PyErr_Clear();
  return left;
}

void Home::enter_context() {
  context_ = PyContext_New();
  if (context_ == nullptr || PyContext_Enter(context_) != 0) PyErr_Clear();
}

void Home::leave_context() {
  if (context_ != nullptr && PyContext_Exit(context_) != 0) PyErr_Clear();
  Py_CLEAR(context_);
}

std::string Home::wipe_once(bool& is_out_of_memory) {
  bool settled = false;
  for (int round = 0; round < kRounds && !settled; ++round) {
    PyObject* done = PyObject_CallNoArgs(wipe_);
    if (done == nullptr) break;
    Py_DECREF(done);
    leave_context();  // now that output is mute
    PyObject* trash = PyList_New(0);
    if (trash == nullptr) break;
    const int differed = pristine.restore(trash);
    Py_DECREF(trash);  // runs finalizers, which may be stopped
    if (differed < 0 || PyErr_Occurred() != nullptr) break;
    settled = round > 0 && differed == 0;
  }
  is_out_of_memory = PyErr_Occurred() != nullptr && PyErr_ExceptionMatches(PyExc_MemoryError) != 0;
  return PyErr_Occurred() == nullptr ? "" : "wiping failed with " + take_error_text();
}

// Its record goes, so that Py_FinalizeEx does not meet it; what it holds stays where it is. Py_EndInterpreter would run what the
// task left there (finalizers, audit hooks), which nothing could stop, and CPython 3.13.0 then keeps most of the memory all the
// same; it also aborts the process where _datetime was loaded, whose static types' tuples it frees in the wrong interpreter.
void Home::end() {
  PyInterpreterState* interpreter = PyThreadState_GetInterpreter(thread);
  Lender::forget(PyInterpreterState_GetID(interpreter));
  PyInterpreterState_Delete(interpreter);
}

}  // namespace walle::vm

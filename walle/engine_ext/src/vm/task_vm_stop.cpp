// Stopping a task VM's call, and abandoning the VM where the call does not stop.
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <system_error>
#include <thread>
#include <utility>

#include "vm/call.h"
#include "vm/interpreter.h"
#include "vm/interpreter_pool.h"
#include "vm/task_vm.h"
#include "vm/thread.h"

namespace walle::vm {

using namespace std::chrono_literals;

namespace {

constexpr int kLowestPriority = 19;
constexpr std::size_t kFunctionNameBytes = 200;
constexpr int kCollectionsBeforeParking = 3;
constexpr auto kCollectionInterval = 200ms;

std::atomic<int> abandoned_count{0};
std::atomic<int> retired_count{0};

std::string attribute_text(PyObject* object, const char* name) {
  PyObject* value = PyObject_GetAttrString(object, name);
  const char* utf8 = value != nullptr && PyUnicode_Check(value) ? PyUnicode_AsUTF8(value) : nullptr;
  std::string text = utf8 != nullptr ? utf8 : "";
  Py_XDECREF(value);
  PyErr_Clear();
  return text;
}

std::string place_text(PyCodeObject* code, const std::string& file, long line) {
  std::string name = attribute_text(reinterpret_cast<PyObject*>(code), "co_name");
  if (name.size() > kFunctionNameBytes) {
    std::size_t end = kFunctionNameBytes;
    while (end > 0 && (static_cast<unsigned char>(name[end]) & 0xC0) == 0x80) --end;  // a character is not cut
    name.resize(end);
  }
  return file + ":" + std::to_string(line) + " in " + name;
}

}  // namespace

int TaskVm::retired_threads() { return retired_count.load(); }

int TaskVm::abandoned_threads() { return abandoned_count.load(); }

void TaskVm::count_abandoned_end() { abandoned_count.fetch_sub(1); }

void TaskVm::clear_thread_counts() { abandoned_count = retired_count = 0; }

void TaskVm::reject_queued(const std::string& why) {
  for (const auto& call : queue_) call->replies->push({call->id, Outcome::closed, {}, why});
  queue_.clear();
}

void TaskVm::request_stop(const std::shared_ptr<Call>& call, Outcome reason, const std::string& limit) {
  if (call->ended || call->stop_reason) return;
  call->stop_reason = reason;
  call->limit = limit;
  if (is_importing_) {
    set_abandonment(call, import_until_ + settings_.grace);
  } else {
    heap_->stopping = true;  // polled by the engine between operators
    set_abandonment(call, Watchdog::Clock::now() + settings_.grace);
  }
  changed_.notify_all();  // the thread may be waiting for a callback
  if (std::exchange(has_stopper_, true)) return;
  try {
    std::thread stopper([self = shared_from_this(), call] { guard_thread([&] { self->run_stopper(call); }); });
    stopper_handle_ = stopper.native_handle();
    stopper.detach();
  } catch (const std::system_error&) {  // no thread can be created: the VM is abandoned at the end of the grace period
    has_stopper_ = false;
  }
}

void TaskVm::set_deadline(const std::shared_ptr<Call>& call, Watchdog::Clock::time_point when) {
  call->stops_at = when;
  if (call->alarm) Watchdog::instance().clear(*call->alarm);
  call->alarm = Watchdog::instance().set(when, [self = shared_from_this(), call] {
    const std::lock_guard guard(self->mutex_);
    if (Watchdog::Clock::now() >= call->stops_at) self->request_stop(call, Outcome::deadline);  // else it was set again
  });
}

void TaskVm::set_abandonment(const std::shared_ptr<Call>& call, Watchdog::Clock::time_point when) {
  call->abandons_at = when;
  if (call->alarm) Watchdog::instance().clear(*call->alarm);
  call->alarm = Watchdog::instance().set(when, [self = shared_from_this(), call] {
    const std::lock_guard lock(self->mutex_);
    if (call->ended || Watchdog::Clock::now() < call->abandons_at) return;
    self->abandon(*call);
    self->request_collection(call);
  });
}

Reply TaskVm::stopped_reply(const Call& call) {
  return {call.id, *call.stop_reason, text_value(call.limit), *call.stop_reason == Outcome::closed ? kClosed : call.place};
}

void TaskVm::abandon(Call& call) {
  if (state_ == State::abandoned) return;
  state_ = State::abandoned;
  was_abandoned_ = true;
  abandoned_count.fetch_add(1);
  InterpreterPool::instance().cancel_release(*interpreter_);
  reject_reason_ = "the VM was abandoned: a call did not stop";
  call.answered = true;
  if (call.place.empty()) call.place = "a C call that cannot be interrupted";
  report({.kind = VmChange::Kind::abandoned});  // sent before the reply, whose receiver may ask whether the VM is alive
  if (call.replies) call.replies->push(stopped_reply(call));
  reject_queued(reject_reason_);
  changed_.notify_all();  // an exiting process may be waiting for it
}

// Raises Stopped in the VM's thread repeatedly until the call has ended, because a task may catch it. Runs on a thread of its
// own, because it waits for the VM's GIL, which a C call may hold for long.
void TaskVm::run_stopper(const std::shared_ptr<Call>& call) {
  PyThreadState* state = PyThreadState_New(PyThreadState_GetInterpreter(interpreter_->thread));
  auto pause_time = 1ms;
  std::unique_lock lock(mutex_);
  auto reraise_from = Watchdog::Clock::now() + settings_.grace / 2;
  while (!call->ended && !is_parked_) {
    if (is_stop_deferred()) {
      changed_.wait_until(lock, import_until_, [&] { return call->ended || is_parked_ || !is_importing_; });
      reraise_from = Watchdog::Clock::now() + settings_.grace / 2;
      continue;
    }
    if (Watchdog::Clock::now() > reraise_from) is_reraising_ = true;
    lock.unlock();
    PyEval_RestoreThread(state);
    lock.lock();
    if (!call->ended && !is_stop_deferred()) {
      if (is_importing_) was_stopped_in_import_ = heap_->stopping = true;
      // The GIL keeps the VM's thread from running. The mutex is not held, because current_place() calls Python's allocator.
      lock.unlock();
      std::string found = failed_at_.empty() ? current_place() : failed_at_;
      PyThreadState_SetAsyncExc(interpreter_->thread_id, interpreter_->stopped);
      lock.lock();
      if (call->place.empty()) call->place = std::move(found);
    }
    lock.unlock();
    PyEval_SaveThread();
    lock.lock();
    changed_.wait_for(lock, pause_time, [&] { return call->ended || is_parked_; });
    pause_time = std::min(pause_time * 2, 50ms);
  }
  lock.unlock();
  PyEval_RestoreThread(state);
  PyThreadState_Clear(state);
  PyThreadState_DeleteCurrent();
  lock.lock();
  has_stopper_ = false;
  changed_.notify_all();
}

// A long C function may check for signals now and then (the regular expression engine does). CPython runs a requested garbage
// collection there, which calls `park_if_abandoned`. Until then the thread runs at the lowest priority. It is not lowered at the
// first request, because it could not be used again.
void TaskVm::request_collection(const std::shared_ptr<Call>& call) {
  if (call->ended || is_parked_ || state_ == State::detached) return;
  if (++collections_requested_ > 1 && system_thread_ != 0)  // elsewhere than on Linux no single thread has a priority
    has_lowest_priority_ = setpriority(PRIO_PROCESS, static_cast<id_t>(system_thread_), kLowestPriority) == 0;
#if PY_VERSION_HEX < 0x030F0000
  constexpr std::uintptr_t kCollect = 1u << 4;  // _PY_GC_SCHEDULED_BIT of CPython 3.13 and 3.14
  __atomic_fetch_or(&interpreter_->thread->eval_breaker, kCollect, __ATOMIC_RELAXED);
#endif
  call->alarm = Watchdog::instance().set(Watchdog::Clock::now() + kCollectionInterval, [self = shared_from_this(), call] {
    const std::lock_guard guard(self->mutex_);
    self->request_collection(call);
  });
}

void TaskVm::park_if_abandoned() {
  std::unique_lock lock(mutex_);
  if (state_ != State::abandoned || current_ == nullptr || last_request_seen_ == collections_requested_) return;
  last_request_seen_ = collections_requested_;
  if (++collections_seen_ < kCollectionsBeforeParking) return;  // Python code raises Stopped first
  is_parked_ = true;
  retired_count.fetch_add(1);
  abandoned_count.fetch_sub(1);
  lock.unlock();
  PyEval_SaveThread();  // lets the stopper end
  changed_.notify_all();
  for (;;) pause();
}

void TaskVm::exceed_limit(const std::string& limit) {
  if (!current_) return;
  std::string found = current_place();
  {
    const std::lock_guard lock(mutex_);
    if (current_->place.empty()) current_->place = std::move(found);
    request_stop(current_, Outcome::limit, limit);
    if (is_stop_deferred()) return;
  }
  PyErr_SetString(interpreter_->stopped, ("the call exceeded its limit " + limit).c_str());
}

// On the VM's thread, under its GIL: raises Stopped, and records the place for the reply.
void TaskVm::raise_stopped(const char* why) {
  std::string found = current_place();
  {
    const std::lock_guard lock(mutex_);
    if (current_->place.empty()) current_->place = std::move(found);
  }
  PyErr_SetString(interpreter_->stopped, why);
}

void TaskVm::exceed_memory() {
  if (has_exceeded_memory_.exchange(true) || !current_ || !current_->replies)
    return;  // a reset is refused the memory, but not stopped
  Watchdog::instance().set(Watchdog::Clock::now(), [self = shared_from_this(), call = current_] {
    const std::lock_guard guard(self->mutex_);
    self->request_stop(call, Outcome::limit, "memory_mb");
  });
}

bool TaskVm::sleep(std::chrono::nanoseconds time) {
  PyThreadState* saved = PyEval_SaveThread();
  bool is_stopped = false;
  {
    std::unique_lock lock(mutex_);
    const auto call = current_;
    is_stopped =
        changed_.wait_for(lock, time, [&] { return call == nullptr || call->stop_reason.has_value(); }) && call != nullptr;
  }
  PyEval_RestoreThread(saved);
  if (is_stopped) raise_stopped("the call was stopped while it slept");
  return !is_stopped;
}

void TaskVm::reraise() {
  if (is_reraising_) PyThreadState_SetAsyncExc(interpreter_->thread_id, interpreter_->stopped);
}

void TaskVm::enter_phase(std::string_view phase, PyObject* code) {
  PlaceEntry* entry = settings_.place_entry;
  if (entry == nullptr) return;
  if (!phase.empty()) entry->enter_phase(phase);
  if (code == nullptr || !PyCode_Check(code)) return;
  auto* entered = reinterpret_cast<PyCodeObject*>(code);
  entry->set_place(place_text(entered, attribute_text(code, "co_filename"), entered->co_firstlineno));
}

// Returns "file:line in function" of the innermost frame of the task's own code, else of the innermost frame. Under the VM's GIL.
std::string TaskVm::current_place() {
  std::string innermost;
  PyFrameObject* frame = PyThreadState_GetFrame(interpreter_->thread);
  while (frame != nullptr) {
    PyCodeObject* code = PyFrame_GetCode(frame);
    const std::string file = attribute_text(reinterpret_cast<PyObject*>(code), "co_filename");
    std::string line = place_text(code, file, PyFrame_GetLineNumber(frame));
    Py_DECREF(code);
    const bool is_own = settings_.task_files.contains(file);
    if (innermost.empty() || is_own) innermost = std::move(line);
    PyFrameObject* outer = is_own ? nullptr : PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = outer;
  }
  return innermost;
}

// Returns "file:line in function" of the innermost frame of the task's own code in the error's traceback, "" where there is none.
std::string TaskVm::place_of(PyObject* error) const {
  std::string found;
  PyObject* step = PyException_GetTraceback(error);
  while (step != nullptr && PyTraceBack_Check(step)) {
    PyCodeObject* code = PyFrame_GetCode(reinterpret_cast<PyTracebackObject*>(step)->tb_frame);
    const std::string file = attribute_text(reinterpret_cast<PyObject*>(code), "co_filename");
    if (settings_.task_files.contains(file)) {
      PyObject* line = PyObject_GetAttrString(step, "tb_lineno");
      found = place_text(code, file, line != nullptr ? PyLong_AsLong(line) : 0);
      Py_XDECREF(line);
      PyErr_Clear();
    }
    Py_DECREF(code);
    PyObject* next = reinterpret_cast<PyObject*>(reinterpret_cast<PyTracebackObject*>(step)->tb_next);
    Py_XINCREF(next);
    Py_DECREF(step);
    step = next;
  }
  Py_XDECREF(step);
  return found;
}

}  // namespace walle::vm

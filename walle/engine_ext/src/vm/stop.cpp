// How a VM's call is stopped, given up, or cut loose from a process that exits.
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <system_error>
#include <thread>
#include <utility>

#include "vm/call.h"
#include "vm/home.h"
#include "vm/interpreter.h"
#include "vm/thread.h"

namespace walle::vm {

using namespace std::chrono_literals;

namespace {

constexpr int kLowestPriority = 19;
constexpr int kNudges = 3;  // that are answered before a thread rests
constexpr auto kNudgeEvery = 200ms;

std::atomic<int> abandoned_threads{0};
std::atomic<int> lost_threads{0};
std::atomic<int> parked_threads{0};  // written in a signal handler

std::string attribute_text(PyObject* object, const char* name) {
  PyObject* value = PyObject_GetAttrString(object, name);
  const char* utf8 = value != nullptr && PyUnicode_Check(value) ? PyUnicode_AsUTF8(value) : nullptr;
  std::string text = utf8 != nullptr ? utf8 : "";
  Py_XDECREF(value);
  PyErr_Clear();
  return text;
}

}  // namespace

int Interpreter::lost() { return lost_threads.load(); }

int Interpreter::abandoned() { return abandoned_threads.load(); }

void Interpreter::forget_abandoned() { abandoned_threads.fetch_sub(1); }

void Interpreter::forget_all_threads() { abandoned_threads = lost_threads = 0; }

void Interpreter::refuse_queued(const std::string& why) {
  for (const auto& call : queue_) call->mailbox->push({call->id, Outcome::closed, {}, why});
  queue_.clear();
}

void Interpreter::request_stop(const std::shared_ptr<Call>& call, Outcome reason, const std::string& limit) {
  if (call->ended || call->stopping) return;
  call->stopping = reason;
  call->limit = limit;
  heap_->stopping = true;  // the engine looks between operators
  if (call->alarm) Watchdog::instance().clear(*call->alarm);
  call->alarm = Watchdog::instance().set(Watchdog::Clock::now() + settings_.grace, [self = shared_from_this(), call] {
    const std::lock_guard lock(self->mutex_);
    if (call->ended) return;
    self->give_up(*call);
    self->nudge(call);
  });
  changed_.notify_all();  // it may be waiting for an answer
  if (std::exchange(stopper_, true)) return;
  try {
    std::thread stopper([self = shared_from_this(), call] { guard_thread([&] { self->press(call); }); });
    stopper_handle_ = stopper.native_handle();
    stopper.detach();
  } catch (const std::system_error&) {  // no thread to be had: the call is given up when its grace is over
    stopper_ = false;
  }
}

Notice Interpreter::stopped_notice(const Call& call) {
  return {call.id, *call.stopping, text_value(call.limit), *call.stopping == Outcome::closed ? kClosed : call.place};
}

void Interpreter::give_up(Call& call) {
  if (state_ == State::given_up) return;
  state_ = State::given_up;
  was_given_up_ = true;
  abandoned_threads.fetch_add(1);
  Home::despair(*home_);
  broken_ = "the VM was abandoned: a call did not stop";
  call.answered = true;
  if (call.place.empty()) call.place = "a C call that cannot be interrupted";
  if (call.mailbox) call.mailbox->push(stopped_notice(call));
  refuse_queued(broken_);
  changed_.notify_all();  // a process that exits may be waiting for it
}

// Raises Stopped in the VM's thread, again and again until the call has ended, because a task may catch it. It has a thread
// of its own because it waits for the VM's GIL, which a C call may hold for long.
void Interpreter::press(const std::shared_ptr<Call>& call) {
  PyThreadState* state = PyThreadState_New(PyThreadState_GetInterpreter(home_->thread));
  auto pause_time = 1ms;
  std::unique_lock lock(mutex_);
  const auto insist_at = Watchdog::Clock::now() + settings_.grace / 2;
  while (!call->ended && !resting_) {
    if (Watchdog::Clock::now() > insist_at) insist_ = true;
    lock.unlock();
    PyEval_RestoreThread(state);
    lock.lock();
    if (!call->ended) {
      // The GIL is held throughout, so the VM's thread stands still; the mutex is not, since the place runs Python's allocator.
      lock.unlock();
      std::string found = place();
      PyThreadState_SetAsyncExc(home_->thread_id, home_->stopped);
      lock.lock();
      if (call->place.empty()) call->place = std::move(found);
    }
    lock.unlock();
    PyEval_SaveThread();
    lock.lock();
    changed_.wait_for(lock, pause_time, [&] { return call->ended || resting_; });
    pause_time = std::min(pause_time * 2, 50ms);
  }
  lock.unlock();
  PyEval_RestoreThread(state);
  PyThreadState_Clear(state);
  PyThreadState_DeleteCurrent();
  lock.lock();
  stopper_ = false;
  changed_.notify_all();
}

// A C function that runs for long may look for signals now and then (the regular expression engine does), and CPython collects
// garbage there if it is asked to, which leads to `rest_if_given_up`. Until it does, the thread gets what time nobody else wants.
void Interpreter::nudge(const std::shared_ptr<Call>& call) {
  if (call->ended || resting_ || state_ == State::cut_loose) return;
  if (++nudges_ > 1)  // a little late is no reason: the thread could not be used again
    is_lowered_ = setpriority(PRIO_PROCESS, static_cast<id_t>(system_thread_), kLowestPriority) == 0;
#if PY_VERSION_HEX < 0x030F0000
  constexpr std::uintptr_t kCollect = 1u << 4;  // _PY_GC_SCHEDULED_BIT of CPython 3.13 and 3.14
  __atomic_fetch_or(&home_->thread->eval_breaker, kCollect, __ATOMIC_RELAXED);
#endif
  call->alarm = Watchdog::instance().set(Watchdog::Clock::now() + kNudgeEvery, [self = shared_from_this(), call] {
    const std::lock_guard guard(self->mutex_);
    self->nudge(call);
  });
}

void Interpreter::rest_if_given_up() {
  std::unique_lock lock(mutex_);
  if (state_ != State::given_up || current_ == nullptr || answered_nudge_ == nudges_) return;
  answered_nudge_ = nudges_;
  if (++answers_ < kNudges) return;  // in Python code, Stopped has its turn now
  resting_ = true;
  lost_threads.fetch_add(1);
  abandoned_threads.fetch_sub(1);
  lock.unlock();
  PyEval_SaveThread();  // for the stopper, which ends now
  changed_.notify_all();
  for (;;) pause();
}

void Interpreter::break_limit(const std::string& limit) {
  if (!current_) return;
  std::string found = place();
  {
    const std::lock_guard lock(mutex_);
    if (current_->place.empty()) current_->place = std::move(found);
    request_stop(current_, Outcome::limit, limit);
  }
  PyErr_SetString(home_->stopped, ("the call broke its limit " + limit).c_str());
}

// On the VM's thread, under its GIL: raises Stopped, and says where for the notice.
void Interpreter::stop_here(const char* why) {
  std::string found = place();
  {
    const std::lock_guard lock(mutex_);
    if (current_->place.empty()) current_->place = std::move(found);
  }
  PyErr_SetString(home_->stopped, why);
}

void Interpreter::exceed_memory() {
  if (exceeded_.exchange(true) || !current_ || !current_->mailbox) return;  // what wipes is only refused, and goes on
  Watchdog::instance().set(Watchdog::Clock::now(), [self = shared_from_this(), call = current_] {
    const std::lock_guard guard(self->mutex_);
    self->request_stop(call, Outcome::limit, "memory_mb");
  });
}

bool Interpreter::sleep(std::chrono::nanoseconds time) {
  PyThreadState* saved = PyEval_SaveThread();
  bool is_stopped = false;
  {
    std::unique_lock lock(mutex_);
    const auto call = current_;
    is_stopped = changed_.wait_for(lock, time, [&] { return call == nullptr || call->stopping.has_value(); }) && call != nullptr;
  }
  PyEval_RestoreThread(saved);
  if (is_stopped) stop_here("the call was stopped while it slept");
  return !is_stopped;
}

void Interpreter::raise_again() {
  if (insist_) PyThreadState_SetAsyncExc(home_->thread_id, home_->stopped);
}

// "file:line" of the innermost frame of the task's own code, else of the innermost frame. Under the VM's GIL.
std::string Interpreter::place() {
  std::string innermost;
  PyFrameObject* frame = PyThreadState_GetFrame(home_->thread);
  while (frame != nullptr) {
    PyCodeObject* code = PyFrame_GetCode(frame);
    const std::string file = attribute_text(reinterpret_cast<PyObject*>(code), "co_filename");
    std::string here = file + ":" + std::to_string(PyFrame_GetLineNumber(frame));
    Py_DECREF(code);
    const bool own = settings_.task_files.contains(file);
    if (innermost.empty() || own) innermost = std::move(here);
    PyFrameObject* outer = own ? nullptr : PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = outer;
  }
  return innermost;
}

// "file:line" of the innermost frame of the task's own code that the error came through, "" where there is none.
std::string Interpreter::place_of(PyObject* error) const {
  std::string found;
  PyObject* step = PyException_GetTraceback(error);
  while (step != nullptr && PyTraceBack_Check(step)) {
    PyCodeObject* code = PyFrame_GetCode(reinterpret_cast<PyTracebackObject*>(step)->tb_frame);
    const std::string file = attribute_text(reinterpret_cast<PyObject*>(code), "co_filename");
    Py_DECREF(code);
    if (settings_.task_files.contains(file)) {
      PyObject* line = PyObject_GetAttrString(step, "tb_lineno");
      found = file + ":" + std::to_string(line != nullptr ? PyLong_AsLong(line) : 0);
      Py_XDECREF(line);
      PyErr_Clear();
    }
    PyObject* next = reinterpret_cast<PyObject*>(reinterpret_cast<PyTracebackObject*>(step)->tb_next);
    Py_XINCREF(next);
    Py_DECREF(step);
    step = next;
  }
  Py_XDECREF(step);
  return found;
}

// The thread is stuck in C code. Py_FinalizeEx would end its interpreter under it, which aborts the process or waits for
// ever; deleting the interpreter's record hides it from that. Its threads are parked in a signal handler first, so that none
// ever steps on what is deleted.
void Interpreter::cut_loose() {
  const std::lock_guard lock(mutex_);
  if (state_ == State::ended || home_ == nullptr) return;
  state_ = State::cut_loose;
  struct sigaction action = {};
  action.sa_handler = [](int) {
    parked_threads.fetch_add(1);
    for (;;) pause();
  };
  sigaction(SIGURG, &action, nullptr);
  const int expected = parked_threads.load() + 1 + stopper_;
  // Both are alive: each takes the mutex once more before it ends.
  pthread_kill(home_->thread_handle, SIGURG);
  if (stopper_) pthread_kill(stopper_handle_, SIGURG);
  for (int waited_ms = 0; parked_threads.load() < expected && waited_ms < 500; ++waited_ms) std::this_thread::sleep_for(1ms);
  PyInterpreterState_Delete(PyThreadState_GetInterpreter(home_->thread));
  Home::mark_cut_loose(*home_);
}

}  // namespace walle::vm

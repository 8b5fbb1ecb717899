// Engine work without the GIL, which deadlines and the program's signals (Ctrl-C) stop.
#pragma once
#include <pybind11/pybind11.h>

#include <chrono>
#include <optional>

#include "core/stop.h"

namespace walle {

// The signals of the program, seen from a thread that has released the GIL. Only those of the main thread have any: CPython runs
// handlers there. Created and destroyed under the GIL.
class PythonSignals final : public SignalSource {
 public:
  PythonSignals() : PythonSignals(PyThreadState_Get()) {}
  ~PythonSignals() override { Py_XDECREF(raised_); }
  PythonSignals(const PythonSignals&) = delete;
  PythonSignals& operator=(const PythonSignals&) = delete;

  bool handle() noexcept override;

  // Throws what a handler raised, if anything; under the GIL.
  void rethrow() {
    if (raised_ == nullptr) return;
    PyErr_SetRaisedException(std::exchange(raised_, nullptr));
    throw pybind11::error_already_set();
  }

 private:
#if PY_VERSION_HEX < 0x030F0000
  static constexpr std::uintptr_t kSignalsPending = 1u << 1;  // _PY_SIGNALS_PENDING_BIT of CPython 3.13 and 3.14
  explicit PythonSignals(PyThreadState* thread) : SignalSource(&thread->eval_breaker, kSignalsPending), thread_(thread) {}
#else
  static constexpr std::uintptr_t kPerhaps = 1;
  explicit PythonSignals(PyThreadState* thread) : SignalSource(&kPerhaps, kPerhaps), thread_(thread) {}
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
#endif
  PyThreadState* const thread_;
  PyObject* raised_ = nullptr;
};

// Returns the point in time that is `seconds` from now; the end of time for none. Throws ValueError for one that is not a number.
StopLimits::Clock::time_point deadline_after(std::optional<double> seconds);

// Returns work(limits), called without the GIL. Throws what a signal's handler raises.
template <class F>
auto without_gil_until(StopLimits::Clock::time_point end, F&& work) {
  PythonSignals signals;
  const StopLimits limits{end, &signals};
  try {
    const pybind11::gil_scoped_release released;
    return work(limits);
  } catch (...) {
    signals.rethrow();
    throw;
  }
}

// The same; `deadline` is in seconds from now. Throws ValueError for a deadline that is not a number.
template <class F>
auto without_gil(F&& work, std::optional<double> deadline = std::nullopt) {
  return without_gil_until(deadline_after(deadline), work);
}

// The same for an operator or another computation that has no limits: it is stopped at `end` and by signals.
template <class F>
auto computed_without_gil(F&& work, StopLimits::Clock::time_point end = StopLimits::Clock::time_point::max()) {
  return without_gil_until(end, [&](const StopLimits& limits) {
    const RunStop stop(limits);
    auto result = work();
    throw_if_stopped();  // what it gave may not be whole
    return result;
  });
}

// Elements of simple loops from which releasing the GIL pays off: about a millisecond.
inline constexpr std::int64_t kReleaseGil = 1 << 20;

// Returns work(), as computed_without_gil does where it handles that many elements. Other threads may then run and change arrays:
// `work` must use copies of their tensors, not references to them.
template <class F>
auto computed(std::int64_t elements, F&& work) {
  if (elements < kReleaseGil) return work();
  return computed_without_gil(work);
}

// Polls between Python objects, under the GIL: for loops that create or read one object for each element.
class ObjectPoll {
 public:
  // Counts one object. From time to time, runs the handlers of signals and throws what one raises, and WorkStopped where the VM's
  // call must end. A handler may change any array.
  void proceed() {
    if (++count_ % kInterval != 0) return;
    throw_if_stopped();
    if (PyErr_CheckSignals() != 0) throw pybind11::error_already_set();
  }

  static constexpr std::int64_t kInterval = 1 << 14;

 private:
  std::int64_t count_ = 0;
};

}  // namespace walle

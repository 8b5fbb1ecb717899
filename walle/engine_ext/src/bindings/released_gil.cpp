#include "bindings/released_gil.h"

#include <cmath>

namespace walle {

#if PY_VERSION_HEX < 0x030F0000

bool PythonSignals::handle() noexcept {
  PyEval_RestoreThread(thread_);
  // As CPython does before it runs the handlers; PyErr_CheckSignals itself leaves the bit.
  __atomic_fetch_and(&thread_->eval_breaker, ~kSignalsPending, __ATOMIC_RELAXED);
#else

// The bit is not known: handlers are asked for every 20 ms.
bool PythonSignals::handle() noexcept {
  const auto now = std::chrono::steady_clock::now();
  if (now - last_ < std::chrono::milliseconds(20)) return false;
  last_ = now;
  PyEval_RestoreThread(thread_);
#endif
  if (raised_ == nullptr && PyErr_CheckSignals() != 0) raised_ = PyErr_GetRaisedException();
  PyEval_SaveThread();
  return raised_ != nullptr;
}

StopLimits::Clock::time_point deadline_after(std::optional<double> seconds) {
  using Clock = StopLimits::Clock;
  if (!seconds) return Clock::time_point::max();
  if (std::isnan(*seconds)) throw pybind11::value_error("deadline is nan; give it in seconds from now");
  constexpr double kLongest = 1e9;  // seconds: 30 years, which the clock holds
  if (*seconds >= kLongest) return Clock::time_point::max();
  const std::chrono::duration<double> time(std::max(*seconds, 0.0));
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(time);
}

}  // namespace walle

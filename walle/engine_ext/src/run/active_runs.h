// Runs of a session or module that are in progress, which another thread can cancel.
#pragma once
#include <algorithm>
#include <mutex>
#include <vector>

#include "core/stop.h"

namespace walle {

class ActiveRuns {
 public:
  // A run, from construction to destruction.
  class Run {
   public:
    Run(ActiveRuns& runs, const StopLimits& limits) : runs_(runs), stop_(limits) {
      const std::lock_guard lock(runs_.mutex_);
      runs_.stops_.push_back(&stop_);
    }
    ~Run() {
      const std::lock_guard lock(runs_.mutex_);
      std::erase(runs_.stops_, &stop_);
    }
    Run(const Run&) = delete;
    Run& operator=(const Run&) = delete;

   private:
    ActiveRuns& runs_;
    RunStop stop_;
  };

  // Stops the runs in progress; later ones are not affected.
  void cancel() noexcept {
    const std::lock_guard lock(mutex_);
    for (RunStop* stop : stops_) stop->cancel();
  }

 private:
  std::mutex mutex_;
  std::vector<RunStop*> stops_;
};

}  // namespace walle

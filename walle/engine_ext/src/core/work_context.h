// Per-thread work context: an account of engine memory and a stop flag, set where a thread runs for a VM (§4.3).
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>

#include "core/stop.h"

namespace walle {

class WorkContext : public StopFlag {
 public:
  // Called on the allocating thread before engine memory is allocated; false refuses the allocation.
  virtual bool may_allocate(std::int64_t size_bytes) = 0;
  // Called around the loading of a model, on the thread that runs for the VM: the deadline stands still meanwhile.
  virtual void begin_loading() = 0;
  virtual void end_loading() = 0;

  std::atomic<std::int64_t> engine_bytes{0};  // allocated by its threads and not yet freed, on whichever thread
};

// The context of this thread; null where it runs for no VM.
std::shared_ptr<WorkContext>& current_work_context() noexcept;

// Loading of a model, from construction to destruction. They nest.
class Loading {
 public:
  Loading() : context_(current_work_context()) {
    if (context_) context_->begin_loading();
  }
  ~Loading() {
    if (context_) context_->end_loading();
  }
  Loading(const Loading&) = delete;
  Loading& operator=(const Loading&) = delete;

 private:
  const std::shared_ptr<WorkContext> context_;
};

}  // namespace walle

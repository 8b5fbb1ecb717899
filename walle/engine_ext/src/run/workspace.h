// Workspaces of a session or module: the device memory and the queue of one run. Runs on several threads have one each, and
// another thread can cancel them.
#pragma once
#include <memory>
#include <mutex>
#include <vector>

#include "core/device.h"
#include "core/stop.h"
#include "plan/plan.h"

namespace walle {

class Workspace {
 public:
  // Throws std::system_error where a thread cannot be created.
  Workspace(const Device& device, int threads) : device_(device), queue_(device.make_queue(threads)) {}

  // Makes the arena large enough for a plan; allocates nothing where it is. Throws OutOfMemory, which names a node.
  void reserve(const Plan& plan);
  BufferHandle arena() const noexcept { return arena_.handle; }
  Queue& queue() const noexcept { return *queue_; }
  // Return the device's copy of the input or output of that buffer number, made as large as `size_bytes`; allocates nothing where
  // it is. Throws OutOfMemory.
  const Buffer& transfer(std::size_t number, std::size_t size_bytes = 0);

  std::vector<BufferHandle> buffers;  // buffers of the plan that runs (run/execute.cpp)

 private:
  const Device& device_;
  const std::unique_ptr<Queue> queue_;
  Buffer arena_;
  std::vector<Buffer> transfers_;  // by buffer number
};

// The workspaces and stops of runs, thread-safe. There are as many as runs in progress, and at most kIdle idle workspaces
// besides.
class WorkspacePool {
 public:
  static constexpr std::size_t kIdle = 4;

  WorkspacePool(const Device& device, int threads) : device_(device), threads_(threads) { idle_.reserve(kIdle); }

  // A run in progress on this thread, from construction to destruction: its workspace and its stop.
  class Run {
   public:
    Run(WorkspacePool& pool, const StopLimits& limits) : pool_(pool), stop_(limits), workspace_(pool.begin(stop_)) {}
    ~Run() { pool_.end(stop_, std::move(workspace_)); }
    Run(const Run&) = delete;
    Run& operator=(const Run&) = delete;
    Workspace& workspace() const noexcept { return *workspace_; }

   private:
    WorkspacePool& pool_;
    RunStop stop_;
    std::unique_ptr<Workspace> workspace_;
  };

  // Stops the runs in progress; later ones are not affected.
  void cancel() noexcept;

 private:
  std::unique_ptr<Workspace> begin(RunStop& stop);
  void end(RunStop& stop, std::unique_ptr<Workspace> workspace) noexcept;

  const Device& device_;
  const int threads_;
  std::mutex mutex_;
  std::vector<RunStop*> stops_;                   // stop flags of the runs in progress
  std::vector<std::unique_ptr<Workspace>> idle_;  // the last used at the end
};

}  // namespace walle

// Workspaces of a session or module: the memory and the threads of one run. Runs on several threads have one each, and another
// thread can cancel them.
#pragma once
#include <memory>
#include <mutex>
#include <vector>

#include "core/stop.h"
#include "core/team.h"
#include "plan/plan.h"

namespace walle {

class Workspace {
 public:
  // Throws std::system_error where a thread cannot be created.
  explicit Workspace(int threads) : team(threads) {}

  // Makes the arena large enough for a plan; allocates nothing where it is. Throws OutOfMemory, which names a node.
  void reserve(const Plan& plan);
  std::size_t arena_bytes() const noexcept { return arena_ ? arena_->size_bytes() : 0; }
  std::byte* arena() const noexcept { return arena_->data(); }

  Team team;
  std::vector<std::byte*> bases, addresses;  // addresses of the plan that runs (run/execute.cpp)

 private:
  std::shared_ptr<Storage> arena_;
};

// The workspaces and stops of runs, thread-safe. There are as many as runs in progress, and at most kIdle idle workspaces
// besides.
class WorkspacePool {
 public:
  static constexpr std::size_t kIdle = 4;

  explicit WorkspacePool(int threads) : threads_(threads) { idle_.reserve(kIdle); }

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

  const int threads_;
  std::mutex mutex_;
  std::vector<RunStop*> stops_;                   // stop flags of the runs in progress
  std::vector<std::unique_ptr<Workspace>> idle_;  // the last used at the end
};

}  // namespace walle

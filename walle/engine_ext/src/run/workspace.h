// Workspaces of a session or module: the memory and the threads of one run. Runs on several threads have one each.
#pragma once
#include <memory>
#include <mutex>
#include <vector>

#include "core/team.h"
#include "plan/plan.h"

namespace walle {

class Workspace {
 public:
  // Throws std::system_error where a thread cannot be created.
  explicit Workspace(int threads) : team(threads) {}

  // Makes the arena large enough; allocates nothing where it is. Throws std::bad_alloc.
  void reserve(std::size_t arena_bytes);
  std::size_t arena_bytes() const noexcept { return arena_ ? arena_->size_bytes() : 0; }
  std::byte* arena() const noexcept { return arena_->data(); }

  Team team;
  std::vector<std::byte*> bases, addresses;  // of the plan that runs (run/execute.cpp)

 private:
  std::shared_ptr<Storage> arena_;
};

// The idle workspaces, thread-safe. There are as many workspaces as runs in progress, and at most kIdle idle ones besides.
class WorkspacePool {
 public:
  static constexpr std::size_t kIdle = 4;

  explicit WorkspacePool(int threads) : threads_(threads) { idle_.reserve(kIdle); }

  // A workspace, which its destructor returns to the pool.
  class Lease {
   public:
    explicit Lease(WorkspacePool& pool) : pool_(pool), workspace_(pool.take()) {}
    ~Lease() { pool_.put(std::move(workspace_)); }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    Workspace& operator*() const noexcept { return *workspace_; }
    Workspace* operator->() const noexcept { return workspace_.get(); }

   private:
    WorkspacePool& pool_;
    std::unique_ptr<Workspace> workspace_;
  };

 private:
  std::unique_ptr<Workspace> take();
  void put(std::unique_ptr<Workspace> workspace) noexcept;

  const int threads_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Workspace>> idle_;  // the last used at the end
};

}  // namespace walle

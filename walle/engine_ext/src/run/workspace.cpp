#include "run/workspace.h"

namespace walle {

void Workspace::reserve(std::size_t bytes) {
  if (arena_ != nullptr && arena_->size_bytes() >= bytes) return;
  arena_ = nullptr;  // first, so that both are not held at once
  arena_ = Storage::allocate(bytes);
}

std::unique_ptr<Workspace> WorkspacePool::begin(RunStop& stop) {
  std::unique_ptr<Workspace> workspace;
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      workspace = std::move(idle_.back());
      idle_.pop_back();
      stops_.push_back(&stop);
      return workspace;
    }
  }
  workspace = std::make_unique<Workspace>(threads_);
  const std::lock_guard lock(mutex_);
  stops_.push_back(&stop);
  return workspace;
}

void WorkspacePool::end(RunStop& stop, std::unique_ptr<Workspace> workspace) noexcept {
  const std::lock_guard lock(mutex_);
  std::erase(stops_, &stop);
  if (idle_.size() < kIdle) idle_.push_back(std::move(workspace));
}  // a further one is freed after the lock

void WorkspacePool::cancel() noexcept {
  const std::lock_guard lock(mutex_);
  for (RunStop* stop : stops_) stop->cancel();
}

}  // namespace walle

#include "run/workspace.h"

namespace walle {

void Workspace::reserve(std::size_t bytes) {
  if (arena_ != nullptr && arena_->size_bytes() >= bytes) return;
  arena_ = nullptr;  // first, so that both are not held at once
  arena_ = Storage::allocate(bytes);
}

std::unique_ptr<Workspace> WorkspacePool::take() {
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      auto workspace = std::move(idle_.back());
      idle_.pop_back();
      return workspace;
    }
  }
  return std::make_unique<Workspace>(threads_);
}

void WorkspacePool::put(std::unique_ptr<Workspace> workspace) noexcept {
  const std::lock_guard lock(mutex_);
  if (idle_.size() < kIdle) idle_.push_back(std::move(workspace));
}  // a further one is freed here, after the lock

}  // namespace walle

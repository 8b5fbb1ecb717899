#include "run/workspace.h"

namespace walle {

void Workspace::reserve(const Plan& plan) {
  if (arena_.owner != nullptr && arena_.size_bytes >= plan.arena_bytes) return;
  arena_ = {};  // first, so that both are not held at once
  try {
    arena_ = device_.allocate(plan.arena_bytes);
  } catch (const std::bad_alloc& error) {
    if (plan.largest_bytes == 0) throw;
    throw OutOfMemory(plan.ops[plan.largest].title() + ", whose result of " + std::to_string(plan.largest_bytes) +
                          " bytes is the largest of the run",
                      error);
  }
}

const Buffer& Workspace::transfer(std::size_t number, std::size_t size_bytes) {
  if (transfers_.size() <= number) transfers_.resize(number + 1);
  Buffer& buffer = transfers_[number];
  if (buffer.owner != nullptr && buffer.size_bytes >= size_bytes) return buffer;
  buffer = {};
  return buffer = device_.allocate(size_bytes);
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
  workspace = std::make_unique<Workspace>(device_, threads_);
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

// Memory account of a VM. CPython allocates small objects in arenas of a megabyte and large ones by malloc. Both are counted as
// they are allocated on the VM's thread, and refused beyond the VM's limit: the task gets a MemoryError and is stopped (§4.3).
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>

#include "core/work_context.h"

namespace walle::vm {

class TaskVm;

class Heap : public WorkContext {
 public:
  // Installs counting allocators in front of CPython's own, once; under the main interpreter's GIL.
  static void install_allocators();
  // The heap that this thread's Python objects are counted in; null for none. Stopper threads do not count.
  static Heap*& current() noexcept;

  explicit Heap(TaskVm& vm) : vm_(vm) {}

  // 0: no limit. What the interpreter holds before the task starts does not count.
  void set_limit(std::int64_t limit_bytes) { limit_bytes_.store(limit_bytes, std::memory_order_relaxed); }
  std::int64_t limit() const { return limit_bytes_.load(std::memory_order_relaxed); }
  // Python objects and engine memory of this VM.
  std::int64_t used_bytes() const;

  bool may_allocate(std::int64_t size_bytes) override;
  void begin_loading() override;
  void end_loading() override;
  void count(std::int64_t size_bytes) { python_bytes_.fetch_add(size_bytes, std::memory_order_relaxed); }

 private:
  TaskVm& vm_;
  std::atomic<std::int64_t> python_bytes_{0};  // negative where more was freed than allocated since the task started
  std::atomic<std::int64_t> limit_bytes_{0};
};

}  // namespace walle::vm

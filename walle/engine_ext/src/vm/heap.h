// How much memory Python takes in a VM. CPython gets small objects from arenas of a megabyte and large ones from malloc; both are
// counted where they are asked for, on the VM's thread, and refused where the VM's limit is reached: the task meets MemoryError
// and is stopped (§4.3).
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>

#include "core/work_context.h"

namespace walle::vm {

class Interpreter;

class Heap : public WorkContext {
 public:
  // Puts counting allocators before CPython's own; once, under the main interpreter's GIL.
  static void watch();
  // The heap that this thread's Python objects lie in, null for none. Its interpreter's stopper threads do not count.
  static Heap*& here() noexcept;

  explicit Heap(Interpreter& vm) : vm_(vm) {}

  // 0: no limit. What the interpreter holds when the VM moves in does not count.
  void set_limit(std::int64_t limit_bytes) { limit_bytes_.store(limit_bytes, std::memory_order_relaxed); }
  // Python objects and engine memory of the present VM.
  std::int64_t used_bytes() const;

  bool may_allocate(std::int64_t size_bytes) override;
  void count(std::int64_t size_bytes) { python_bytes_.fetch_add(size_bytes, std::memory_order_relaxed); }

 private:
  Interpreter& vm_;
  std::atomic<std::int64_t> python_bytes_{0};  // less than none where more is given back than was taken since
  std::atomic<std::int64_t> limit_bytes_{0};
};

}  // namespace walle::vm

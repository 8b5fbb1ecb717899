// Vectors of an operator that grow with its input and are not tensors: they count towards the memory of the VM that the thread
// works for, and are refused with std::bad_alloc where its limit is reached.
#pragma once
#include <cstddef>
#include <limits>
#include <memory>
#include <new>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/work_context.h"

namespace walle {

// Allocator that charges the context it was created in, on whichever thread the memory is freed.
template <class T>
class WorkAllocator {
 public:
  using value_type = T;
  using propagate_on_container_copy_assignment = std::true_type;
  using propagate_on_container_move_assignment = std::true_type;
  using propagate_on_container_swap = std::true_type;

  WorkAllocator() : context_(current_work_context()) {}
  template <class Other>
  WorkAllocator(const WorkAllocator<Other>& other) noexcept : context_(other.context_) {}  // NOLINT: as allocators convert

  T* allocate(std::size_t count) {
    if (count > static_cast<std::size_t>(std::numeric_limits<std::ptrdiff_t>::max()) / sizeof(T)) throw std::bad_alloc();
    const auto bytes = static_cast<std::int64_t>(count * sizeof(T));
    if (context_ && !context_->may_allocate(bytes))
      throw OutOfMemory("cannot allocate " + std::to_string(bytes) + " bytes: that is beyond the memory limit of the task's VM");
    T* data = std::allocator<T>().allocate(count);
    if (context_) context_->engine_bytes.fetch_add(bytes, std::memory_order_relaxed);
    return data;
  }
  void deallocate(T* data, std::size_t count) noexcept {
    std::allocator<T>().deallocate(data, count);
    if (context_) context_->engine_bytes.fetch_sub(static_cast<std::int64_t>(count * sizeof(T)), std::memory_order_relaxed);
  }

  template <class Other>
  bool operator==(const WorkAllocator<Other>& other) const noexcept {
    return context_ == other.context_;
  }

 private:
  template <class Other>
  friend class WorkAllocator;

  std::shared_ptr<WorkContext> context_;
};

template <class T>
using WorkVector = std::vector<T, WorkAllocator<T>>;

// Fills an empty vector with `size` copies of an item; throws WorkStopped once a stop was requested.
template <class Vector>
void fill_stoppable(Vector& items, std::size_t size, const typename Vector::value_type& item) {
  items.reserve(size);
  run_stoppable(static_cast<std::int64_t>(size), 1 + static_cast<std::int64_t>(sizeof(item)) / 8,
                [&](std::int64_t, std::int64_t last) { items.resize(static_cast<std::size_t>(last), item); });
}

}  // namespace walle

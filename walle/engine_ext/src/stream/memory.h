// Memory of event columns: vectors whose allocations the process can count, as a VM's memory limit does.
#pragma once
#include <cstddef>
#include <cstdint>
#include <new>
#include <string>
#include <vector>

namespace walle::stream {

struct MemoryFunctions {
  void* (*allocate)(std::size_t);  // a null pointer refuses
  void (*release)(void*);
};

// The functions of this process: malloc and free until they are set, once, before a second thread allocates.
MemoryFunctions& memory_functions() noexcept;

// Leaves trivial items uninitialised when a vector grows.
template <typename T>
struct CountedAllocator {
  using value_type = T;
  CountedAllocator() = default;
  template <typename U>
  CountedAllocator(const CountedAllocator<U>&) noexcept {}

  T* allocate(std::size_t count) {
    if (count > PTRDIFF_MAX / sizeof(T)) throw std::bad_alloc();
    void* block = memory_functions().allocate(count * sizeof(T));
    if (block == nullptr) throw std::bad_alloc();
    return static_cast<T*>(block);
  }
  void deallocate(T* block, std::size_t) noexcept { memory_functions().release(block); }
  template <typename U>
  void construct(U* place) {
    ::new (static_cast<void*>(place)) U;
  }
  template <typename U, typename First, typename... Rest>
  void construct(U* place, First&& first, Rest&&... rest) {
    ::new (static_cast<void*>(place)) U(static_cast<First&&>(first), static_cast<Rest&&>(rest)...);
  }
  friend bool operator==(const CountedAllocator&, const CountedAllocator&) { return true; }
};

template <typename T>
using Vector = std::vector<T, CountedAllocator<T>>;
using Text = std::basic_string<char, std::char_traits<char>, CountedAllocator<char>>;

}  // namespace walle::stream

#include "vm/heap.h"

#include <Python.h>
#include <malloc.h>

#include <algorithm>

#include "vm/interpreter.h"

namespace walle::vm {

namespace {

// What small pieces may take beyond the limit, so that a task that has met it can end in order.
constexpr std::int64_t kSlackBytes = std::int64_t{4} << 20;
constexpr std::int64_t kArenaBytes = std::int64_t{1} << 20;

PyMemAllocatorEx raw_below;  // set once, before any VM
PyObjectArenaAllocator arenas_below;

void count_if_here(std::int64_t size_bytes) {
  if (Heap* heap = Heap::here()) heap->count(size_bytes);
}

bool may_allocate(std::size_t size_bytes) {
  Heap* heap = Heap::here();
  return heap == nullptr || heap->may_allocate(static_cast<std::int64_t>(std::min(size_bytes, std::size_t{1} << 62)));
}

std::int64_t size_of(void* block) { return static_cast<std::int64_t>(malloc_usable_size(block)); }

void* counted(void* block) {
  if (block != nullptr) count_if_here(size_of(block));
  return block;
}

void* raw_malloc(void*, std::size_t size) {
  return may_allocate(size) ? counted(raw_below.malloc(raw_below.ctx, size)) : nullptr;
}

void* raw_calloc(void*, std::size_t count, std::size_t size) {
  std::size_t total = 0;
  if (__builtin_mul_overflow(count, size, &total) || !may_allocate(total)) return nullptr;
  return counted(raw_below.calloc(raw_below.ctx, count, size));
}

void* raw_realloc(void*, void* block, std::size_t size) {
  const std::int64_t before = block != nullptr ? size_of(block) : 0;
  if (static_cast<std::int64_t>(std::min(size, std::size_t{1} << 62)) > before &&
      !may_allocate(size - static_cast<std::size_t>(before)))
    return nullptr;
  void* moved = raw_below.realloc(raw_below.ctx, block, size);
  if (moved != nullptr) count_if_here(size_of(moved) - before);
  return moved;
}

void raw_free(void*, void* block) {
  if (block != nullptr) count_if_here(-size_of(block));
  raw_below.free(raw_below.ctx, block);
}

void* arena_alloc(void*, std::size_t size) {
  void* arena = may_allocate(size) ? arenas_below.alloc(arenas_below.ctx, size) : nullptr;
  if (arena != nullptr) count_if_here(static_cast<std::int64_t>(size));
  return arena;
}

void arena_free(void*, void* arena, std::size_t size) {
  count_if_here(-static_cast<std::int64_t>(size));
  arenas_below.free(arenas_below.ctx, arena, size);
}

}  // namespace

void Heap::watch() {
  PyMem_GetAllocator(PYMEM_DOMAIN_RAW, &raw_below);
  if (raw_below.malloc == raw_malloc) return;
  PyMemAllocatorEx raw{nullptr, raw_malloc, raw_calloc, raw_realloc, raw_free};
  PyMem_SetAllocator(PYMEM_DOMAIN_RAW, &raw);
  PyObject_GetArenaAllocator(&arenas_below);
  PyObjectArenaAllocator arenas{nullptr, arena_alloc, arena_free};
  PyObject_SetArenaAllocator(&arenas);
}

Heap*& Heap::here() noexcept {
  thread_local Heap* heap = nullptr;
  return heap;
}

std::int64_t Heap::used_bytes() const {
  return python_bytes_.load(std::memory_order_relaxed) + engine_bytes.load(std::memory_order_relaxed);
}

bool Heap::may_allocate(std::int64_t size_bytes) {
  const std::int64_t limit = limit_bytes_.load(std::memory_order_relaxed);
  if (limit == 0) return true;
  const std::int64_t after = used_bytes() + size_bytes;
  if (after <= limit) return true;
  vm_.exceed_memory();
  return size_bytes <= kArenaBytes && after <= limit + kSlackBytes;
}

}  // namespace walle::vm

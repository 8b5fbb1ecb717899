#include "vm/heap.h"

#include <Python.h>
#include <malloc.h>

#include <algorithm>

#include "core/blocks.h"
#include "vm/task_vm.h"

namespace walle::vm {

namespace {

// What small allocations may take beyond the limit, so that a task that has reached it can end in order.
constexpr std::int64_t kSlackBytes = std::int64_t{4} << 20;
constexpr std::int64_t kArenaBytes = std::int64_t{1} << 20;

// CPython's own allocators; set once, before any VM.
PyMemAllocatorEx raw_allocator;
PyObjectArenaAllocator arena_allocator;

void count_if_vm(std::int64_t size_bytes) {
  if (Heap* heap = Heap::current()) heap->count(size_bytes);
}

bool may_allocate(std::size_t size_bytes) {
  Heap* heap = Heap::current();
  return heap == nullptr || heap->may_allocate(static_cast<std::int64_t>(std::min(size_bytes, std::size_t{1} << 62)));
}

std::int64_t size_of(void* block) { return static_cast<std::int64_t>(malloc_usable_size(block)); }

void* counted(void* block) {
  if (block != nullptr) count_if_vm(size_of(block));
  return block;
}

void* raw_malloc(void*, std::size_t size) {
  return may_allocate(size) ? counted(raw_allocator.malloc(raw_allocator.ctx, size)) : nullptr;
}

void* raw_calloc(void*, std::size_t count, std::size_t size) {
  std::size_t total = 0;
  if (__builtin_mul_overflow(count, size, &total) || !may_allocate(total)) return nullptr;
  return counted(raw_allocator.calloc(raw_allocator.ctx, count, size));
}

void* raw_realloc(void*, void* block, std::size_t size) {
  const std::int64_t before = block != nullptr ? size_of(block) : 0;
  if (static_cast<std::int64_t>(std::min(size, std::size_t{1} << 62)) > before &&
      !may_allocate(size - static_cast<std::size_t>(before)))
    return nullptr;
  void* moved = raw_allocator.realloc(raw_allocator.ctx, block, size);
  if (moved != nullptr) count_if_vm(size_of(moved) - before);
  return moved;
}

void raw_free(void*, void* block) {
  if (block != nullptr) count_if_vm(-size_of(block));
  raw_allocator.free(raw_allocator.ctx, block);
}

void* arena_alloc(void*, std::size_t size) {
  void* arena = may_allocate(size) ? arena_allocator.alloc(arena_allocator.ctx, size) : nullptr;
  if (arena != nullptr) count_if_vm(static_cast<std::int64_t>(size));
  return arena;
}

void arena_free(void*, void* arena, std::size_t size) {
  count_if_vm(-static_cast<std::int64_t>(size));
  arena_allocator.free(arena_allocator.ctx, arena, size);
}

}  // namespace

void Heap::install_allocators() {
  PyMem_GetAllocator(PYMEM_DOMAIN_RAW, &raw_allocator);
  if (raw_allocator.malloc == raw_malloc) return;
  PyMemAllocatorEx raw{nullptr, raw_malloc, raw_calloc, raw_realloc, raw_free};
  PyMem_SetAllocator(PYMEM_DOMAIN_RAW, &raw);
  PyObject_GetArenaAllocator(&arena_allocator);
  PyObjectArenaAllocator arenas{nullptr, arena_alloc, arena_free};
  PyObject_SetArenaAllocator(&arenas);
}

Heap*& Heap::current() noexcept {
  thread_local Heap* heap = nullptr;
  return heap;
}

std::int64_t Heap::used_bytes() const {
  return python_bytes_.load(std::memory_order_relaxed) + engine_bytes.load(std::memory_order_relaxed);
}

void Heap::begin_loading() { vm_.begin_loading(); }

void Heap::end_loading() { vm_.end_loading(); }

bool Heap::may_allocate(std::int64_t size_bytes) {
  const std::int64_t limit = limit_bytes_.load(std::memory_order_relaxed);
  if (limit == 0) return true;
  const std::int64_t after = used_bytes() + size_bytes;
  // Freed blocks that the thread caches are memory too, and are given back first.
  if (after + static_cast<std::int64_t>(cached_block_bytes()) > limit) free_cached_blocks();
  if (after <= limit) return true;
  vm_.exceed_memory();
  return size_bytes <= kArenaBytes && after <= limit + kSlackBytes;
}

}  // namespace walle::vm

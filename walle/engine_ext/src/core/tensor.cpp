#include "core/tensor.h"

#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <new>

#include "core/blocks.h"
#include "core/work_context.h"

namespace walle {

namespace {

std::atomic<std::size_t> live_bytes{0};
std::atomic<std::size_t> limit_bytes{static_cast<std::size_t>(::sysconf(_SC_PHYS_PAGES)) *
                                     static_cast<std::size_t>(::sysconf(_SC_PAGESIZE))};

}  // namespace

std::shared_ptr<WorkContext>& current_work_context() noexcept {
  thread_local std::shared_ptr<WorkContext> context;
  return context;
}

std::size_t live_storage_bytes() noexcept { return live_bytes.load(std::memory_order_relaxed); }

std::size_t storage_limit() noexcept { return limit_bytes.load(std::memory_order_relaxed); }

void set_storage_limit(std::size_t bytes) noexcept { limit_bytes.store(bytes, std::memory_order_relaxed); }

namespace {
std::size_t padded_bytes(std::size_t size_bytes) { return (size_bytes / Storage::kAlignment + 1) * Storage::kAlignment; }

std::string refusal(std::size_t size_bytes, const std::string& why) {
  return "cannot allocate " + std::to_string(size_bytes) + " bytes: " + why;
}
}  // namespace

std::shared_ptr<Storage> Storage::allocate(std::size_t size_bytes) {
  const std::size_t padded = padded_bytes(size_bytes), limit = storage_limit();
  if (padded < size_bytes || padded > limit || live_storage_bytes() > limit - padded)
    throw OutOfMemory(refusal(size_bytes, std::to_string(live_storage_bytes()) + " of the machine's " + std::to_string(limit) +
                                              " bytes are in use by the engine"));
  const std::shared_ptr<WorkContext>& context = current_work_context();
  if (context && !context->may_allocate(static_cast<std::int64_t>(padded)))
    throw OutOfMemory(refusal(size_bytes, "that is beyond the memory limit of the task's VM"));
  auto storage = std::make_shared<Storage>(Key());  // first, because nothing may throw once there is a block
  storage->owned_ = allocate_block(padded);
  if (storage->owned_.data == nullptr) throw OutOfMemory(refusal(size_bytes, "the system has not enough memory"));
  storage->data_ = storage->owned_.data;
  storage->size_bytes_ = size_bytes;
  const std::size_t tail = size_bytes / kAlignment * kAlignment;
  std::memset(storage->data_ + tail, 0, padded - tail);
  live_bytes.fetch_add(padded, std::memory_order_relaxed);
  if (context) {
    storage->context_ = context;
    context->engine_bytes.fetch_add(static_cast<std::int64_t>(padded), std::memory_order_relaxed);
  }
  return storage;
}

std::shared_ptr<Storage> Storage::borrow(void* data, std::size_t size_bytes, bool writable, std::function<void()> release) {
  auto storage = std::make_shared<Storage>(Key());
  storage->data_ = static_cast<std::byte*>(data);
  storage->size_bytes_ = size_bytes;
  storage->writable_ = writable;
  storage->release_ = std::move(release);
  return storage;
}

Storage::~Storage() {
  if (release_) release_();
  if (owned_.data == nullptr) return;
  const std::size_t padded = padded_bytes(size_bytes_);
  free_block(owned_);
  live_bytes.fetch_sub(padded, std::memory_order_relaxed);
  if (context_) context_->engine_bytes.fetch_sub(static_cast<std::int64_t>(padded), std::memory_order_relaxed);
}

std::int64_t element_count(const Dims& shape) {
  std::int64_t count = 1;
  bool empty = false;
  for (const auto dim : shape) {
    if (dim < 0) throw Error(ErrorKind::shape, "shape " + to_string(shape) + " has a negative dimension");
    if (dim == 0)
      empty = true;  // the other dimensions are still checked, because strides are computed from them
    else if (__builtin_mul_overflow(count, dim, &count) || count > kMaxElements)
      throw Error(ErrorKind::shape, "shape " + to_string(shape) + " has more than 2^48 elements");
  }
  return empty ? 0 : count;
}

Dims contiguous_strides(const Dims& shape) {
  Dims strides(shape.size());
  std::uint64_t step = 1;  // wraps for a shape that element_count refuses
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    strides[axis] = static_cast<std::int64_t>(step);
    step *= static_cast<std::uint64_t>(shape[axis]);
  }
  return strides;
}

std::string to_string(const Dims& dims) {
  std::string text = "(";
  for (std::size_t i = 0; i < dims.size(); ++i) text += (i ? ", " : "") + std::to_string(dims[i]);
  return text + (dims.size() == 1 ? ",)" : ")");
}

Tensor::Tensor(std::shared_ptr<Storage> storage, DType dtype, Dims shape, Dims strides, std::int64_t offset)
    : storage_(std::move(storage)), dtype_(dtype), shape_(std::move(shape)), strides_(std::move(strides)), offset_(offset) {
  if (shape_.size() != strides_.size())
    throw Error(ErrorKind::shape, "shape " + to_string(shape_) + " and strides " + to_string(strides_) + " differ in length");
  if (element_count(shape_) == 0) return;
  std::int64_t low = offset_, high = offset_;
  for (std::size_t axis = 0; axis < shape_.size(); ++axis) {
    std::int64_t span;
    if (__builtin_mul_overflow(shape_[axis] - 1, strides_[axis], &span) ||
        __builtin_add_overflow(span < 0 ? low : high, span, span < 0 ? &low : &high))
      throw Error(ErrorKind::shape, "strides " + to_string(strides_) + " of shape " + to_string(shape_) + " overflow 63 bits");
  }
  const auto capacity = storage_ ? static_cast<std::int64_t>(storage_->size_bytes() / item_size(dtype_)) : 0;
  if (low < 0 || high >= capacity)
    throw Error(ErrorKind::shape, "a view of shape " + to_string(shape_) + " and strides " + to_string(strides_) + " at offset " +
                                      std::to_string(offset_) + " exceeds its storage of " + std::to_string(capacity) +
                                      " elements");
}

Tensor Tensor::empty(DType dtype, Dims shape) {
  const auto count = static_cast<std::size_t>(element_count(shape));
  if (count > SIZE_MAX / 2 / item_size(dtype))
    throw OutOfMemory("a tensor of shape " + to_string(shape) + " and " + std::string(dtype_name(dtype)) +
                      " needs more memory than the machine has");
  auto strides = contiguous_strides(shape);
  return {Storage::allocate(count * item_size(dtype)), dtype, std::move(shape), std::move(strides), 0};
}

std::int64_t Tensor::size() const noexcept {
  std::int64_t count = 1;
  for (const auto dim : shape_) count *= dim;
  return count;
}

std::byte* Tensor::raw() const noexcept {
  return storage_ ? storage_->data() + offset_ * static_cast<std::int64_t>(item_size(dtype_)) : nullptr;
}

bool Tensor::contiguous() const noexcept {
  std::int64_t step = 1;
  for (std::size_t axis = shape_.size(); axis-- > 0;) {
    if (shape_[axis] != 1 && strides_[axis] != step) return size() == 0;
    step *= shape_[axis];
  }
  return true;
}

}  // namespace walle

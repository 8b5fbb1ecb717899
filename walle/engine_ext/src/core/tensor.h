// Tensors: shared storage viewed through a dtype, a shape, strides and an offset. Copying a Tensor copies no elements.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/blocks.h"
#include "core/dtype.h"
#include "core/error.h"

namespace walle {

class WorkContext;

using Dims = std::vector<std::int64_t>;

inline constexpr int kMaxAxes = 8;  // axes of a loop nest, and of a region after merging

// A block of bytes and the function that releases it. Owned memory is aligned to kAlignment and zero-padded to a multiple of it,
// so that a vector kernel may read a whole last vector; borrowed memory (a mapped file, another library's buffer) is neither.
class Storage {
  struct Key {};  // only this class can create one

 public:
  static constexpr std::size_t kAlignment = 64;

  static std::shared_ptr<Storage> allocate(std::size_t size_bytes);
  // `release` runs once, on the thread that drops the last reference, and must not throw.
  static std::shared_ptr<Storage> borrow(void* data, std::size_t size_bytes, bool writable, std::function<void()> release);

  explicit Storage(Key) {}  // for std::make_shared
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;
  ~Storage();

  std::byte* data() const noexcept { return data_; }
  std::size_t size_bytes() const noexcept { return size_bytes_; }
  bool writable() const noexcept { return writable_; }
  bool is_owned() const noexcept { return owned_.data != nullptr; }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_bytes_ = 0;
  bool writable_ = true;
  MemoryBlock owned_;                     // no data where the memory is borrowed
  std::shared_ptr<WorkContext> context_;  // work context whose account counts owned memory
  std::function<void()> release_;         // called when borrowed memory is released
};

// Bytes of engine memory that live storages own now, in the whole process (the VM's memory limit counts them).
std::size_t live_storage_bytes() noexcept;
// The upper limit of live_storage_bytes(), initially the machine's physical memory. An allocation above it throws std::bad_alloc;
// the system would overcommit the memory and kill the process when it is used.
std::size_t storage_limit() noexcept;
void set_storage_limit(std::size_t bytes) noexcept;

class Tensor {
 public:
  Tensor() = default;
  // A view of `storage`; strides and offset in elements. Throws Error (shape) where an element would lie outside the storage.
  Tensor(std::shared_ptr<Storage> storage, DType dtype, Dims shape, Dims strides, std::int64_t offset);

  // Allocates contiguous memory; only its padding is initialised.
  static Tensor empty(DType dtype, Dims shape);

  DType dtype() const noexcept { return dtype_; }
  const Dims& shape() const noexcept { return shape_; }
  const Dims& strides() const noexcept { return strides_; }
  std::int64_t offset() const noexcept { return offset_; }
  int ndim() const noexcept { return static_cast<int>(shape_.size()); }
  std::int64_t size() const noexcept;
  const std::shared_ptr<Storage>& storage() const noexcept { return storage_; }

  // Address of the first element; null only if there is no storage.
  std::byte* raw() const noexcept;
  template <class T>
  T* data() const noexcept {
    return reinterpret_cast<T*>(raw());
  }

  bool contiguous() const noexcept;

 private:
  std::shared_ptr<Storage> storage_;
  DType dtype_ = DType::f32;
  Dims shape_;
  Dims strides_;
  std::int64_t offset_ = 0;
};

// Upper limit of a tensor's elements, so that sums and products of a few counts and item sizes fit 63 bits.
inline constexpr std::int64_t kMaxElements = std::int64_t{1} << 48;

// Returns the product of the dimensions. Throws Error (shape) for a negative dimension, and where the non-zero dimensions
// multiply to more than kMaxElements.
std::int64_t element_count(const Dims& shape);
// Row-major strides in elements. They are meaningless for a shape that element_count refuses.
Dims contiguous_strides(const Dims& shape);
std::string to_string(const Dims& dims);

}  // namespace walle

// What the code on a thread answers to where it runs for a VM: an account of the engine memory that it takes, and a wish that it
// stop (§4.3).
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <stdexcept>

namespace walle {

class Tenant {
 public:
  virtual ~Tenant() = default;

  // Asked before engine memory is taken, on the thread that takes it; false where it may not be had.
  virtual bool may_take(std::int64_t size_bytes) = 0;

  std::atomic<std::int64_t> engine_bytes{0};  // that its threads took and nobody has given back yet, on whichever thread
  std::atomic<bool> stopping{false};
};

// That of this thread; null where it runs for nobody.
std::shared_ptr<Tenant>& tenant_here() noexcept;

// Long work was asked to stop. Thrown between operators.
class WorkStopped : public std::runtime_error {
 public:
  WorkStopped() : std::runtime_error("the call was stopped in the engine") {}
};

inline void stop_if_asked() {
  if (const auto& tenant = tenant_here(); tenant && tenant->stopping.load(std::memory_order_relaxed)) throw WorkStopped();
}

// For loops over what no memory bounds, as a broadcast view is any number of elements: whether the work is still wanted, looked
// up every few million elements.
class Wanted {
 public:
  // Of the next so many elements, before they are worked on; once it is false it stays so.
  bool next(std::int64_t elements) noexcept {
    if (tenant_ == nullptr || (left_ -= elements) > 0) return is_;
    left_ = kEvery;
    return is_ = is_ && !tenant_->stopping.load(std::memory_order_relaxed);
  }
  explicit operator bool() const noexcept { return is_; }

  static constexpr std::int64_t kEvery = std::int64_t{1} << 22;

 private:
  const Tenant* tenant_ = tenant_here().get();
  std::int64_t left_ = kEvery;
  bool is_ = true;
};

}  // namespace walle

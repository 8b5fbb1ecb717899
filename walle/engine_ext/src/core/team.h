// A team: the threads of one session, its caller among them. A team of one has no thread of its own and runs everything in place.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "core/work_context.h"

namespace walle {

class Team {
 public:
  // Throws std::system_error where a thread cannot be had.
  explicit Team(int size = 1);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  // Less than some ten microseconds of one core, in multiplications and additions: not worth waking another thread for.
  static constexpr double kWorthSharing = 2e6;

  int size() const noexcept { return static_cast<int>(threads_.size()) + 1; }

  // work(i, member) for each i in [0, count), spread over the members (0 to size - 1), and back when all are done. One call at a
  // time; `work` must not throw and must not call this team. Where a stop of the caller's work context is requested, what has not
  // begun is left out, and the caller is to end as between operators. `operations` is what there is to do in all, as far as it is
  // known.
  template <class F>
  void each(std::int64_t count, F&& work, double operations = kWorthSharing) noexcept {
    if (threads_.empty() || count <= 1 || operations < kWorthSharing) {
      const std::atomic<bool>* stopping = current_stop_flag();
      for (std::int64_t i = 0; i < count && !is_set(stopping); ++i) work(i, 0);
      return;
    }
    share(
        count, [](void* given, std::int64_t i, int member) { (*static_cast<std::remove_reference_t<F>*>(given))(i, member); },
        const_cast<void*>(static_cast<const void*>(&work)));
  }

 private:
  using Call = void (*)(void* work, std::int64_t i, int member);

  // What of the work is a member's first: the same part of every step's, so that one step finds what the last has left in the
  // caches of its core.
  struct alignas(64) Share {
    std::atomic<std::int64_t> next{0};
    std::int64_t end = 0;
  };

  static const std::atomic<bool>* current_stop_flag() noexcept {
    const WorkContext* context = current_work_context().get();
    return context != nullptr ? &context->stopping : nullptr;
  }
  static bool is_set(const std::atomic<bool>* flag) noexcept { return flag != nullptr && flag->load(std::memory_order_relaxed); }

  void share(std::int64_t count, Call call, void* work) noexcept;
  bool forked() const noexcept;
  void take_turns(int member) noexcept;
  void serve(int member) noexcept;

  int process_ = 0;
  Call call_ = nullptr;
  void* work_ = nullptr;
  const std::atomic<bool>* stopping_ = nullptr;      // of the caller's context, null where it has none
  std::unique_ptr<Share[]> share_of_;                // by member
  alignas(64) std::atomic<std::uint32_t> round_{0};  // changes when there is work, or the end
  alignas(64) std::atomic<int> busy_{0};             // helpers that have not finished this round
  std::atomic<bool> over_{false};
  std::vector<std::thread> threads_;
};

}  // namespace walle

// Team: the threads of one session, its caller among them. A team of one has no further thread and runs everything in place.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "core/fault.h"
#include "core/stop.h"

namespace walle {

class Team {
 public:
  // Throws std::system_error where a thread cannot be created.
  explicit Team(int size = 1);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  // In multiplications and additions: less is some ten microseconds of one core, for which no other thread is woken up.
  static constexpr double kWorthSharing = 2e6;

  int size() const noexcept { return static_cast<int>(threads_.size()) + 1; }

  // Runs work(i, member) for each i in [0, count), spread over the members (0 to size - 1), and returns when all are done. One
  // call at a time; `work` must not throw and must not call this team. Once the caller's current stop is requested, items that
  // have not begun are skipped, and the caller must end as between operators; the members poll the same stop, and report faults
  // to the caller's scope. `operations` is the total work, as far as it is known.
  template <class F>
  void each(std::int64_t count, F&& work, double operations = kWorthSharing) noexcept {
    if (threads_.empty() || count <= 1 || operations < kWorthSharing) {
      StopFlag* stop = current_stop();
      for (std::int64_t i = 0; i < count && !is_stopped(stop); ++i) work(i, 0);
      return;
    }
    share(
        count,
        [](void* argument, std::int64_t i, int member) { (*static_cast<std::remove_reference_t<F>*>(argument))(i, member); },
        const_cast<void*>(static_cast<const void*>(&work)));
  }

 private:
  using Call = void (*)(void* argument, std::int64_t i, int member);

  // The items that a member runs first. They are the same part of every step's work, so that one step finds what the last has
  // left in the caches of its core.
  struct alignas(64) Share {
    std::atomic<std::int64_t> next{0};
    std::int64_t end = 0;
  };

  static bool is_stopped(StopFlag* stop) noexcept { return stop != nullptr && stop->poll(); }

  void share(std::int64_t count, Call call, void* argument) noexcept;
  bool forked() const noexcept;
  void run_shares(int member) noexcept;
  void run_helper(int member) noexcept;

  int process_ = 0;
  Call call_ = nullptr;
  void* argument_ = nullptr;                         // argument of call_
  StopFlag* stop_ = nullptr;                         // the caller's; null where it has none
  FaultScope* faults_ = nullptr;                     // fault scope of the caller; null where it has none
  std::unique_ptr<Share[]> shares_;                  // by member
  alignas(64) std::atomic<std::uint32_t> round_{0};  // changes when there is work, or the team ends
  alignas(64) std::atomic<int> busy_helpers_{0};     // helpers that have not finished this round
  std::atomic<bool> ending_{false};
  std::vector<std::thread> threads_;
};

}  // namespace walle

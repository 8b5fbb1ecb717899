#include "core/team.h"

#include <unistd.h>

#include <algorithm>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace walle {

namespace {

// How often a waiting thread looks before it sleeps: some ten microseconds, about the time between two steps of a plan. Longer
// would burn a core that other tasks of the device can use.
constexpr int kLooks = 2000;

void breathe() noexcept {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

}  // namespace

Team::Team(int size) {
  if (size <= 1) return;  // every operator of walle.np makes a team of one: it must cost nothing
  share_of_ = std::make_unique<Share[]>(static_cast<std::size_t>(size));
  process_ = ::getpid();
  try {
    for (int member = 1; member < size; ++member) threads_.emplace_back([this, member] { serve(member); });
  } catch (...) {
    over_.store(true);
    round_.fetch_add(1);
    round_.notify_all();
    for (std::thread& thread : threads_) thread.join();
    throw;
  }
}

Team::~Team() {
  if (threads_.empty()) return;
  if (forked()) {  // nobody is there to be told or waited for
    for (std::thread& thread : threads_) thread.detach();
    return;
  }
  over_.store(true, std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

bool Team::forked() const noexcept { return process_ != ::getpid(); }

void Team::share(std::int64_t count, Call call, void* work) noexcept {
  if (forked()) {  // a forked process has its caller's thread alone
    for (std::int64_t i = 0; i < count; ++i) call(work, i, 0);
    return;
  }
  call_ = call;
  work_ = work;
  stopping_ = current_stop_flag();
  for (int member = 0; member < size(); ++member) {
    share_of_[member].next.store(count * member / size(), std::memory_order_relaxed);
    share_of_[member].end = count * (member + 1) / size();
  }
  busy_.store(static_cast<int>(threads_.size()), std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  take_turns(0);
  int looks = 0;
  for (int left = busy_.load(std::memory_order_acquire); left != 0; left = busy_.load(std::memory_order_acquire)) {
    if (++looks < kLooks)
      breathe();
    else
      busy_.wait(left, std::memory_order_acquire);
  }
}

// The member's own share, then what is left of the others'.
void Team::take_turns(int member) noexcept {
  for (int other = 0; other < size(); ++other) {
    Share& share = share_of_[(member + other) % size()];
    for (std::int64_t i = share.next.fetch_add(1, std::memory_order_relaxed); i < share.end && !is_set(stopping_);
         i = share.next.fetch_add(1, std::memory_order_relaxed))
      call_(work_, i, member);
  }
}

void Team::serve(int member) noexcept {
  std::uint32_t seen = 0;
  for (;;) {
    int looks = 0;
    while (round_.load(std::memory_order_acquire) == seen) {
      if (++looks < kLooks)
        breathe();
      else
        round_.wait(seen, std::memory_order_acquire);
    }
    ++seen;
    if (over_.load(std::memory_order_relaxed)) return;
    take_turns(member);
    if (busy_.fetch_sub(1, std::memory_order_acq_rel) == 1) busy_.notify_one();
  }
}

}  // namespace walle

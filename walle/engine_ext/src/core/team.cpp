#include "core/team.h"

#include <unistd.h>

#include <algorithm>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace walle {

namespace {

// How often a waiting thread polls before it blocks: some ten microseconds, about the time between two steps of a plan. Longer
// spinning would use a core that other tasks of the device can use.
constexpr int kSpins = 2000;

void relax_cpu() noexcept {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

}  // namespace

Team::Team(int size) {
  if (size <= 1) return;  // every operator of walle.np creates a team of one, which must cost nothing
  shares_ = std::make_unique<Share[]>(static_cast<std::size_t>(size));
  process_ = ::getpid();
  try {
    for (int member = 1; member < size; ++member) threads_.emplace_back([this, member] { run_helper(member); });
  } catch (...) {
    ending_.store(true);
    round_.fetch_add(1);
    round_.notify_all();
    for (std::thread& thread : threads_) thread.join();
    throw;
  }
}

Team::~Team() {
  if (threads_.empty()) return;
  if (forked()) {  // the other threads do not exist here
    for (std::thread& thread : threads_) thread.detach();
    return;
  }
  ending_.store(true, std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

bool Team::forked() const noexcept { return process_ != ::getpid(); }

void Team::share(std::int64_t count, Call call, void* argument) noexcept {
  if (forked()) {  // a forked process has only the thread that forked
    StopFlag* stop = current_stop();
    for (std::int64_t i = 0; i < count && !is_stopped(stop); ++i) call(argument, i, 0);
    return;
  }
  call_ = call;
  argument_ = argument;
  stop_ = current_stop();
  faults_ = FaultScope::current();
  for (int member = 0; member < size(); ++member) {
    shares_[member].next.store(count * member / size(), std::memory_order_relaxed);
    shares_[member].end = count * (member + 1) / size();
  }
  busy_helpers_.store(static_cast<int>(threads_.size()), std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  run_shares(0);
  int spins = 0;
  for (int busy = busy_helpers_.load(std::memory_order_acquire); busy != 0;
       busy = busy_helpers_.load(std::memory_order_acquire)) {
    if (++spins < kSpins)
      relax_cpu();
    else
      busy_helpers_.wait(busy, std::memory_order_acquire);
  }
}

// Runs the member's own share, then what is left of the others'.
void Team::run_shares(int member) noexcept {
  for (int other = 0; other < size(); ++other) {
    Share& share = shares_[(member + other) % size()];
    for (std::int64_t i = share.next.fetch_add(1, std::memory_order_relaxed); i < share.end && !is_stopped(stop_);
         i = share.next.fetch_add(1, std::memory_order_relaxed))
      call_(argument_, i, member);
  }
}

void Team::run_helper(int member) noexcept {
  std::uint32_t seen = 0;
  for (;;) {
    int spins = 0;
    while (round_.load(std::memory_order_acquire) == seen) {
      if (++spins < kSpins)
        relax_cpu();
      else
        round_.wait(seen, std::memory_order_acquire);
    }
    ++seen;
    if (ending_.load(std::memory_order_relaxed)) return;
    exchange_stop(stop_);
    FaultScope::exchange(faults_);
    run_shares(member);
    if (busy_helpers_.fetch_sub(1, std::memory_order_acq_rel) == 1) busy_helpers_.notify_one();
  }
}

}  // namespace walle

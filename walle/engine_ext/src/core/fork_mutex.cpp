#include "core/fork_mutex.h"

#include <pthread.h>

#include <unordered_set>

namespace walle {

namespace {

// Process-wide, never destroyed: a thread may fork while the process exits.
struct All {
  std::mutex mutex;
  std::unordered_set<ForkMutex*> live;
};

All& all() {
  static All& one = *new All();
  return one;
}

thread_local int held_times = 0;

}  // namespace

// A thread that holds one may want another, so none is waited for while others are held.
void ForkMutex::hold_all() {
  if (held_times++ > 0) return;
  all().mutex.lock();
  ForkMutex* awaited = nullptr;
  for (;;) {
    if (awaited != nullptr) awaited->lock();
    ForkMutex* refused = nullptr;
    std::unordered_set<ForkMutex*> held;
    for (ForkMutex* one : all().live) {
      if (one == awaited || one->try_lock()) {
        held.insert(one);
        continue;
      }
      refused = one;
      break;
    }
    if (refused == nullptr) return;
    if (awaited != nullptr) held.insert(awaited);
    for (ForkMutex* one : held) one->unlock();
    awaited = refused;
  }
}

void ForkMutex::let_go_of_all() {
  if (--held_times > 0) return;
  for (ForkMutex* one : all().live) one->unlock();
  all().mutex.unlock();
}

ForkMutex::ForkMutex() {
  static const int watched = pthread_atfork(hold_all, let_go_of_all, let_go_of_all);
  static_cast<void>(watched);
  const std::lock_guard lock(all().mutex);
  all().live.insert(this);
}

ForkMutex::~ForkMutex() {
  const std::lock_guard lock(all().mutex);
  all().live.erase(this);
}

}  // namespace walle

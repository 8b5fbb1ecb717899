#include "core/fork_mutex.h"

#include <pthread.h>

#include <unordered_set>

namespace walle {

namespace {

// Process-wide, never destroyed: a thread may fork while the process exits.
struct Registry {
  std::mutex mutex;
  std::unordered_set<ForkMutex*> live;
};

Registry& registry() {
  static Registry& instance = *new Registry();
  return instance;
}

thread_local int lock_depth = 0;  // nested calls of lock_all

}  // namespace

// A thread that holds one mutex may be waiting for another, so this never blocks on one while it holds others.
void ForkMutex::lock_all() {
  if (lock_depth++ > 0) return;
  registry().mutex.lock();
  ForkMutex* awaited = nullptr;
  for (;;) {
    if (awaited != nullptr) awaited->lock();
    ForkMutex* busy = nullptr;
    std::unordered_set<ForkMutex*> locked;
    for (ForkMutex* mutex : registry().live) {
      if (mutex == awaited || mutex->try_lock()) {
        locked.insert(mutex);
        continue;
      }
      busy = mutex;
      break;
    }
    if (busy == nullptr) return;
    if (awaited != nullptr) locked.insert(awaited);
    for (ForkMutex* mutex : locked) mutex->unlock();
    awaited = busy;
  }
}

void ForkMutex::unlock_all() {
  if (--lock_depth > 0) return;
  for (ForkMutex* mutex : registry().live) mutex->unlock();
  registry().mutex.unlock();
}

ForkMutex::ForkMutex() {
  static const int installed = pthread_atfork(lock_all, unlock_all, unlock_all);
  static_cast<void>(installed);
  const std::lock_guard lock(registry().mutex);
  registry().live.insert(this);
}

ForkMutex::~ForkMutex() {
  const std::lock_guard lock(registry().mutex);
  registry().live.erase(this);
}

}  // namespace walle

// Mutex that is held over a fork, so that what it guards is consistent in the child, where no other thread exists to unlock it.
#pragma once
#include <mutex>

namespace walle {

// For short critical sections: a fork waits until it holds every such mutex. A thread that holds one must not create or destroy
// another, or fork.
class ForkMutex {
 public:
  ForkMutex();
  ~ForkMutex();
  ForkMutex(const ForkMutex&) = delete;
  ForkMutex& operator=(const ForkMutex&) = delete;

  // Lock all mutexes before a fork, and unlock them after it in both processes. Fork handlers run in the order of their
  // installation. Handlers for mutexes that threads take while they hold a ForkMutex therefore call these too, before locking
  // their own and after unlocking them.
  static void lock_all();
  static void unlock_all();

  void lock() { mutex_.lock(); }
  bool try_lock() { return mutex_.try_lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  std::mutex mutex_;
};

}  // namespace walle

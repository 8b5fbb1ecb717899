// A mutex that is held over a fork, so that what it guards is whole in the child, where no other thread is left to let go of it.
#pragma once
#include <mutex>

namespace walle {

// For what is kept short: a fork waits until it can be held. No thread that holds one makes or ends another, or forks.
class ForkMutex {
 public:
  ForkMutex();
  ~ForkMutex();
  ForkMutex(const ForkMutex&) = delete;
  ForkMutex& operator=(const ForkMutex&) = delete;

  // What a fork does, before it and in both processes after it. Who holds other mutexes over a fork, which threads want while
  // they hold one of these, calls it too, before its own and after them: handlers of forks run in whatever order they were made
  // known.
  static void hold_all();
  static void let_go_of_all();

  void lock() { mutex_.lock(); }
  bool try_lock() { return mutex_.try_lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  std::mutex mutex_;
};

}  // namespace walle

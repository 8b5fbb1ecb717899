// Guard of the engine's own threads at the end of the process.
#pragma once
#include <unistd.h>

#include <cstddef>  // defines __GLIBCXX__ where libstdc++ is used

#ifdef __GLIBCXX__
#include <cxxabi.h>
#endif

namespace walle::vm {

// Runs a thread's body. When the main interpreter is finalized, CPython ends any thread that asks for a GIL by unwinding its
// stack. Such a thread is parked instead, because no destructor on its stack may run any more.
template <class Body>
void guard_thread(Body body) {
#ifdef __GLIBCXX__
  try {
    body();
  } catch (abi::__forced_unwind&) {
    for (;;) pause();
  }
#else
  body();
#endif
}

}  // namespace walle::vm

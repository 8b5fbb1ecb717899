// Buffers that an interpreter lends to the engine: a Py_buffer (NumPy, bytes, a mapped file) may only be given back under the
// GIL of the interpreter that lent it, while the last Tensor on it may go on any thread. What is dropped elsewhere waits in
// the lender's queue until the lender drains it; what a lender that is gone lent is forgotten, never touched.
#pragma once
#include <Python.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "core/tensor.h"

namespace walle::vm {

// One interpreter's side of lending.
class Lender {
 public:
  // That of the interpreter whose GIL this thread holds.
  static std::shared_ptr<Lender> current();

  // From any thread: gives the buffer back now where this thread holds the lender's GIL, otherwise leaves it in the queue.
  void give_back(const Py_buffer& view);
  // Under the lender's GIL: gives back what waits.
  void drain();
  // From any thread, once nobody runs in the interpreter any more: what it lent is its own affair.
  static void forget(std::int64_t interpreter);

 private:
  friend void lenders_before_fork();
  friend void lenders_after_fork();
  explicit Lender(std::int64_t interpreter) : interpreter_(interpreter) {}

  const std::int64_t interpreter_;
  std::mutex mutex_;
  std::vector<Py_buffer> waiting_;
  bool closed_ = false;
};

// Takes over the view. The storage covers [base, base + size_bytes) and gives the view back when it goes.
std::shared_ptr<Storage> lend(const Py_buffer& view, std::byte* base, std::size_t size_bytes);

// The same memory as `storage`, read-only; lent by whoever lent `storage`.
std::shared_ptr<Storage> read_only(const std::shared_ptr<Storage>& storage);

// Around a fork, on the thread that forks.
void lenders_before_fork();
void lenders_after_fork();

// Whether the interpreter whose GIL this thread holds lent this storage's memory, so that it would die with the interpreter.
bool lent_here(const Storage* storage);

}  // namespace walle::vm

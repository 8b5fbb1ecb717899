// Buffers that an interpreter loans to the engine. A Py_buffer (NumPy, bytes, a mapped file) may be released only under the GIL
// of the interpreter that owns it, while the last Tensor on it may be dropped on any thread. A buffer dropped elsewhere waits in
// a queue of its owner until the owner releases it. Loans of an interpreter that has ended are forgotten and never touched.
#pragma once
#include <Python.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "core/tensor.h"

namespace walle::vm {

// The loans of one interpreter.
class ArrayLoans {
 public:
  // The loans of the interpreter whose GIL this thread holds.
  static std::shared_ptr<ArrayLoans> current();

  // From any thread: releases the buffer at once where this thread holds the owner's GIL, otherwise queues it.
  void end_loan(const Py_buffer& view);
  // Under the owner's GIL: releases the queued buffers.
  void release_ended();
  // From any thread, once no thread runs in the interpreter: drops the record of its loans and releases nothing.
  static void forget(std::int64_t interpreter);

 private:
  friend void lock_loans_for_fork();
  friend void unlock_loans_after_fork();
  explicit ArrayLoans(std::int64_t interpreter) : interpreter_(interpreter) {}

  const std::int64_t interpreter_;
  std::mutex mutex_;
  std::vector<Py_buffer> ended_;  // buffers that the owner releases
  bool closed_ = false;
};

// Returns a storage over [base, base + size_bytes) that takes over the view and ends the loan when it is destroyed.
std::shared_ptr<Storage> loan(const Py_buffer& view, std::byte* base, std::size_t size_bytes);

// Returns a read-only storage over the same memory, with the same owner.
std::shared_ptr<Storage> read_only(const std::shared_ptr<Storage>& storage);

// Around a fork, on the thread that forks.
void lock_loans_for_fork();
void unlock_loans_after_fork();

// Returns whether the interpreter whose GIL this thread holds owns this storage's memory, which is then freed with the
// interpreter.
bool is_loaned_here(const Storage* storage);

}  // namespace walle::vm

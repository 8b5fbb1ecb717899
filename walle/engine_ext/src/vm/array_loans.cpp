#include "vm/array_loans.h"

#include <unordered_map>
#include <utility>

namespace walle::vm {

namespace {

// Never destroyed: a thread of an abandoned VM may still reach it while the process exits.
struct LoanRegistry {
  std::mutex mutex;
  std::unordered_map<std::int64_t, std::shared_ptr<ArrayLoans>> loans;  // by interpreter id
  std::unordered_map<const Storage*, std::int64_t> owners;              // storage → interpreter id
};

LoanRegistry& loan_registry() {
  static LoanRegistry& instance = *new LoanRegistry();
  return instance;
}

// The id of the interpreter whose GIL this thread holds, -1 where it holds none.
std::int64_t current_interpreter() {
  PyThreadState* state = PyThreadState_GetUnchecked();
  return state == nullptr ? -1 : PyInterpreterState_GetID(PyThreadState_GetInterpreter(state));
}

}  // namespace

std::shared_ptr<ArrayLoans> ArrayLoans::current() {
  const std::int64_t id = current_interpreter();
  LoanRegistry& all = loan_registry();
  const std::lock_guard lock(all.mutex);
  auto& loans = all.loans[id];
  if (!loans) loans = std::shared_ptr<ArrayLoans>(new ArrayLoans(id));
  return loans;
}

void ArrayLoans::end_loan(const Py_buffer& view) {
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    if (current_interpreter() != interpreter_) {
      ended_.push_back(view);
      return;
    }
  }
  Py_buffer own = view;
  PyBuffer_Release(&own);
}

void ArrayLoans::release_ended() {
  std::vector<Py_buffer> views;
  {
    const std::lock_guard lock(mutex_);
    views.swap(ended_);
  }
  for (Py_buffer& view : views) PyBuffer_Release(&view);
}

void ArrayLoans::forget(std::int64_t interpreter) {
  LoanRegistry& all = loan_registry();
  const std::lock_guard lock(all.mutex);
  const auto found = all.loans.find(interpreter);
  if (found == all.loans.end()) return;
  {
    const std::lock_guard own(found->second->mutex_);
    found->second->closed_ = true;
    found->second->ended_.clear();
  }
  all.loans.erase(found);
}

std::shared_ptr<Storage> loan(const Py_buffer& view, std::byte* base, std::size_t size_bytes) {
  auto loans = ArrayLoans::current();
  loans->release_ended();
  // The key in `owners` is the storage's address, which is known only after the storage is created.
  auto key = std::make_shared<const Storage*>(nullptr);
  auto storage = Storage::borrow(base, size_bytes, !view.readonly, [loans, view, key] {
    {
      const std::lock_guard lock(loan_registry().mutex);
      loan_registry().owners.erase(*key);
    }
    loans->end_loan(view);
  });
  *key = storage.get();
  const std::lock_guard lock(loan_registry().mutex);
  loan_registry().owners[storage.get()] = current_interpreter();
  return storage;
}

std::shared_ptr<Storage> read_only(const std::shared_ptr<Storage>& storage) {
  auto key = std::make_shared<const Storage*>(nullptr);
  auto view = Storage::borrow(storage->data(), storage->size_bytes(), false, [storage, key] {
    const std::lock_guard lock(loan_registry().mutex);
    loan_registry().owners.erase(*key);
  });
  *key = view.get();
  LoanRegistry& all = loan_registry();
  const std::lock_guard lock(all.mutex);
  if (const auto found = all.owners.find(storage.get()); found != all.owners.end()) all.owners[view.get()] = found->second;
  return view;
}

void lock_loans_for_fork() {
  loan_registry().mutex.lock();
  for (const auto& [id, loans] : loan_registry().loans) loans->mutex_.lock();
}

void unlock_loans_after_fork() {
  for (const auto& [id, loans] : loan_registry().loans) loans->mutex_.unlock();
  loan_registry().mutex.unlock();
}

bool is_loaned_here(const Storage* storage) {
  const std::int64_t id = current_interpreter();
  LoanRegistry& all = loan_registry();
  const std::lock_guard lock(all.mutex);
  const auto found = all.owners.find(storage);
  return found != all.owners.end() && found->second == id;
}

}  // namespace walle::vm

#include "vm/lending.h"

#include <unordered_map>
#include <utility>

namespace walle::vm {

namespace {

// Never destroyed: a thread of an abandoned VM may still reach it while the process exits.
struct Book {
  std::mutex mutex;
  std::unordered_map<std::int64_t, std::shared_ptr<Lender>> lenders;  // interpreter id → its side
  std::unordered_map<const Storage*, std::int64_t> lent;              // storage → interpreter id
};

Book& book() {
  static Book& one = *new Book();
  return one;
}

// The id of the interpreter whose GIL this thread holds, -1 where it holds none.
std::int64_t interpreter_here() {
  PyThreadState* state = PyThreadState_GetUnchecked();
  return state == nullptr ? -1 : PyInterpreterState_GetID(PyThreadState_GetInterpreter(state));
}

}  // namespace

std::shared_ptr<Lender> Lender::current() {
  const std::int64_t id = interpreter_here();
  Book& all = book();
  const std::lock_guard lock(all.mutex);
  auto& lender = all.lenders[id];
  if (!lender) lender = std::shared_ptr<Lender>(new Lender(id));
  return lender;
}

void Lender::give_back(const Py_buffer& view) {
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    if (interpreter_here() != interpreter_) {
      waiting_.push_back(view);
      return;
    }
  }
  Py_buffer own = view;
  PyBuffer_Release(&own);
}

void Lender::drain() {
  std::vector<Py_buffer> views;
  {
    const std::lock_guard lock(mutex_);
    views.swap(waiting_);
  }
  for (Py_buffer& view : views) PyBuffer_Release(&view);
}

void Lender::forget(std::int64_t interpreter) {
  Book& all = book();
  const std::lock_guard lock(all.mutex);
  const auto found = all.lenders.find(interpreter);
  if (found == all.lenders.end()) return;
  {
    const std::lock_guard own(found->second->mutex_);
    found->second->closed_ = true;
    found->second->waiting_.clear();
  }
  all.lenders.erase(found);
}

std::shared_ptr<Storage> lend(const Py_buffer& view, std::byte* base, std::size_t size_bytes) {
  auto lender = Lender::current();
  lender->drain();
  // The storage's own address is its name in the book; it is known only after the storage is made.
  auto name = std::make_shared<const Storage*>(nullptr);
  auto storage = Storage::borrow(base, size_bytes, !view.readonly, [lender, view, name] {
    {
      const std::lock_guard lock(book().mutex);
      book().lent.erase(*name);
    }
    lender->give_back(view);
  });
  *name = storage.get();
  const std::lock_guard lock(book().mutex);
  book().lent[storage.get()] = interpreter_here();
  return storage;
}

std::shared_ptr<Storage> read_only(const std::shared_ptr<Storage>& storage) {
  auto name = std::make_shared<const Storage*>(nullptr);
  auto view = Storage::borrow(storage->data(), storage->size_bytes(), false, [storage, name] {
    const std::lock_guard lock(book().mutex);
    book().lent.erase(*name);
  });
  *name = view.get();
  const std::lock_guard lock(book().mutex);
  if (const auto found = book().lent.find(storage.get()); found != book().lent.end()) book().lent[view.get()] = found->second;
  return view;
}

void lenders_before_fork() {
  book().mutex.lock();
  for (const auto& [id, lender] : book().lenders) lender->mutex_.lock();
}

void lenders_after_fork() {
  for (const auto& [id, lender] : book().lenders) lender->mutex_.unlock();
  book().mutex.unlock();
}

bool lent_here(const Storage* storage) {
  const std::int64_t id = interpreter_here();
  const std::lock_guard lock(book().mutex);
  const auto found = book().lent.find(storage);
  return found != book().lent.end() && found->second == id;
}

}  // namespace walle::vm

#include "vm/type_writes.h"

#include <stdexcept>

namespace walle::vm {

namespace {

thread_local TypeWrites* of_this_thread = nullptr;  // an interpreter has one thread, and calls its watchers on it

}  // namespace

TypeWrites::~TypeWrites() {
  if (of_this_thread == this) of_this_thread = nullptr;
}

int TypeWrites::note(PyDict_WatchEvent, PyObject* dict, PyObject*, PyObject*) {
  TypeWrites* writes = of_this_thread;
  if (writes == nullptr) return 0;
  if (const auto found = writes->types_.find(dict); found != writes->types_.end()) writes->written_ = found->second;
  return 0;
}

void TypeWrites::watch(PyTypeObject* type, PyObject* dict) {
  if (watcher_ < 0) {
    watcher_ = PyDict_AddWatcher(note);
    if (watcher_ < 0) throw std::runtime_error("the interpreter has no watcher of dicts left");
    of_this_thread = this;
  }
  if (types_.try_emplace(dict, type).second) PyDict_Watch(watcher_, dict);
}

}  // namespace walle::vm

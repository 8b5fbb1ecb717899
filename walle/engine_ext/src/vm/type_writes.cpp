#include "vm/type_writes.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "vm/snapshot_objects.h"

namespace walle::vm {

namespace {

constexpr std::size_t kMaxWritten = 1024;  // entries, before those of one dict are joined

thread_local TypeWrites* of_this_thread = nullptr;  // an interpreter has one thread, and calls its watchers on it

void join(std::vector<PyObject*>& dicts) {
  std::sort(dicts.begin(), dicts.end());
  dicts.erase(std::unique(dicts.begin(), dicts.end()), dicts.end());
}

}  // namespace

TypeWrites::~TypeWrites() {
  if (of_this_thread == this) of_this_thread = nullptr;
}

int TypeWrites::note(PyDict_WatchEvent, PyObject* dict, PyObject*, PyObject*) {
  TypeWrites* writes = of_this_thread;
  if (writes == nullptr || (!writes->written_.empty() && writes->written_.back() == dict)) return 0;
  if (writes->written_.size() >= kMaxWritten) join(writes->written_);
  writes->written_.push_back(dict);
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

PyTypeObject* TypeWrites::clear_caches() {
  PyTypeObject* fixed = nullptr;
  auto written = std::exchange(written_, {});
  join(written);
  for (PyObject* dict : written) {
    const auto found = types_.find(dict);
    if (found == types_.end()) continue;
    if (is_heap_type(found->second))
      PyType_Modified(found->second);
    else
      fixed = found->second;
  }
  return fixed;
}

}  // namespace walle::vm

// Writes to the dicts of static types, which CPython takes as fixed.
#pragma once
#include <Python.h>

#include <unordered_map>
#include <utility>

namespace walle::vm {

// A task gets a type's dict itself (`C.__dict__ == other` gives it to `other`), writes to it, looks the name up once and writes
// the old value back: nothing differs, and CPython's caches of attributes hold a borrowed pointer to the task's function. Those
// of other types are cleared at each reset (vm/type_slots.h); those of static types cannot be, so that writes are noticed as they
// occur.
//
// One for each interpreter, used under its GIL on its one thread.
class TypeWrites {
 public:
  TypeWrites() = default;
  ~TypeWrites();
  TypeWrites(const TypeWrites&) = delete;
  TypeWrites& operator=(const TypeWrites&) = delete;

  // Watches the dict of a static type from now on. Both must outlive this object.
  void watch(PyTypeObject* type, PyObject* dict);
  // Returns a type whose dict was written to since the last time, or null.
  PyTypeObject* take_written() { return std::exchange(written_, nullptr); }

 private:
  static int note(PyDict_WatchEvent event, PyObject* dict, PyObject* key, PyObject* value);

  int watcher_ = -1;
  std::unordered_map<PyObject*, PyTypeObject*> types_;  // by dict
  PyTypeObject* written_ = nullptr;
};

}  // namespace walle::vm

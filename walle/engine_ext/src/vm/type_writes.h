// Writes to the dicts of types that go past the types: CPython's caches of attributes then keep what is no longer there.
#pragma once
#include <Python.h>

#include <unordered_map>
#include <vector>

namespace walle::vm {

// A task gets a type's dict itself (`C.__dict__ == other` gives it to `other`), writes to it, looks the name up once and writes
// the old value back: nothing differs, and a cache holds a borrowed pointer to the task's function. So writes are noticed as they
// occur.
//
// One for each interpreter, used under its GIL on its one thread.
class TypeWrites {
 public:
  TypeWrites() = default;
  ~TypeWrites();
  TypeWrites(const TypeWrites&) = delete;
  TypeWrites& operator=(const TypeWrites&) = delete;

  // Watches the dict of a type from now on. Both must outlive this object.
  void watch(PyTypeObject* type, PyObject* dict);
  // Clears the caches of the types whose dicts were written to since the last time, whether past them or through them. Returns
  // one whose caches cannot be cleared, because CPython shares it or takes it as fixed, or null.
  PyTypeObject* clear_caches();

 private:
  static int note(PyDict_WatchEvent event, PyObject* dict, PyObject* key, PyObject* value);

  int watcher_ = -1;
  std::unordered_map<PyObject*, PyTypeObject*> types_;  // by dict
  std::vector<PyObject*> written_;                      // dicts, some more than once
};

}  // namespace walle::vm

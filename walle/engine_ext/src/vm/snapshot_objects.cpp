#include "vm/snapshot_objects.h"

#include <string_view>

namespace walle::vm {

namespace {

int collect(PyObject* object, void* found) {
  static_cast<std::vector<PyObject*>*>(found)->push_back(object);
  return 0;
}

int mix(PyObject* object, void* digest) {
  auto& value = *static_cast<std::uint64_t*>(digest);
  value = (value ^ reinterpret_cast<std::uintptr_t>(object)) * 0x100000001b3u;
  return 0;
}

int add_hash(PyObject* object, void* digest) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  mix(object, &hash);
  *static_cast<std::uint64_t*>(digest) += hash * hash;
  return 0;
}

bool is_traversable(PyObject* object) { return Py_TYPE(object)->tp_traverse != nullptr && PyObject_IS_GC(object); }

}  // namespace

void referents_of(PyObject* object, std::vector<PyObject*>& found) {
  found.clear();
  if (is_traversable(object)) Py_TYPE(object)->tp_traverse(object, collect, &found);
}

std::uint64_t digest_of(PyObject* object, bool in_any_order) {
  std::uint64_t digest = 0xcbf29ce484222325u;
  mix(reinterpret_cast<PyObject*>(Py_TYPE(object)), &digest);
  if (is_traversable(object)) Py_TYPE(object)->tp_traverse(object, in_any_order ? add_hash : mix, &digest);
  return digest;
}

std::vector<PyObject**> parts_of(PyObject* object) {
  auto* function = reinterpret_cast<PyFunctionObject*>(object);
  return {
      &function->func_code,       &function->func_defaults, &function->func_kwdefaults,  &function->func_name,
      &function->func_qualname,   &function->func_doc,      &function->func_annotations, &function->func_dict,
      &function->func_typeparams, &function->func_module,
#if PY_VERSION_HEX >= 0x030E0000
      &function->func_annotate,
#endif
  };
}

std::array<PyObject**, 2> names_of(PyObject* type) {
  auto* heap_type = reinterpret_cast<PyHeapTypeObject*>(type);
  return {&heap_type->ht_name, &heap_type->ht_qualname};
}

bool is_lock(PyObject* object) {
  const std::string_view name = Py_TYPE(object)->tp_name;
  return name == "_thread.lock" || name == "_thread.RLock";
}

int is_locked(PyObject* lock) {
  const bool is_plain = std::string_view(Py_TYPE(lock)->tp_name) == "_thread.lock";
  PyObject* answer = PyObject_CallMethod(lock, is_plain ? "locked" : "_is_owned", nullptr);
  const int held = answer != nullptr ? PyObject_IsTrue(answer) : -1;
  Py_XDECREF(answer);
  PyErr_Clear();
  return held;
}

void clear_lru_cache(PyObject* cache) {
  PyObject* done = PyObject_CallMethod(as_object(Py_TYPE(cache)), "cache_clear", "O", cache);  // tasks can set another
  Py_XDECREF(done);
}

PyObject* referent_of(PyObject* object) {
  if (!PyWeakref_CheckRefExact(object) || reinterpret_cast<PyWeakReference*>(object)->wr_callback != nullptr) return nullptr;
  PyObject* referent = nullptr;
  if (PyWeakref_GetRef(object, &referent) != 1) return nullptr;
  Py_DECREF(referent);  // others hold it
  return referent;
}

bool is_abstract(PyObject* dict_of_type) { return PyDict_GetItemString(dict_of_type, "_abc_impl") != nullptr; }

void clear_abstract_caches(PyObject* type) {
  PyObject* abc = PyDict_GetItemString(PyImport_GetModuleDict(), "_abc");  // an import would call the task's `__import__`
  PyObject* done = abc != nullptr ? PyObject_CallMethod(abc, "_reset_caches", "O", type) : nullptr;
  Py_XDECREF(done);
  PyErr_Clear();
}

}  // namespace walle::vm

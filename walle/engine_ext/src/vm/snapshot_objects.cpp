#include "vm/snapshot_objects.h"

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

bool is_traversable(PyObject* object) { return Py_TYPE(object)->tp_traverse != nullptr && PyObject_IS_GC(object); }

}  // namespace

void referents_of(PyObject* object, std::vector<PyObject*>& found) {
  found.clear();
  if (is_traversable(object)) Py_TYPE(object)->tp_traverse(object, collect, &found);
}

std::uint64_t digest_of(PyObject* object) {
  std::uint64_t digest = 0xcbf29ce484222325u;
  if (is_traversable(object)) Py_TYPE(object)->tp_traverse(object, mix, &digest);
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

void clear_lru_cache(PyObject* cache) {
  PyObject* done = PyObject_CallMethod(cache, "cache_clear", nullptr);
  Py_XDECREF(done);
}

bool is_abstract(PyObject* dict_of_type) { return PyDict_GetItemString(dict_of_type, "_abc_impl") != nullptr; }

void clear_abstract_caches(PyObject* type) {
  PyObject* abc = PyImport_ImportModule("_abc");
  PyObject* done = abc != nullptr ? PyObject_CallMethod(abc, "_reset_caches", "O", type) : nullptr;
  Py_XDECREF(done);
  Py_XDECREF(abc);
  PyErr_Clear();
}

}  // namespace walle::vm

// Restoration of changed objects from a snapshot, by their kind.
#include "vm/snapshot.h"
#include "vm/snapshot_objects.h"

namespace walle::vm {

namespace {

void discard(PyObject* trash, PyObject* object) {
  if (object != nullptr) PyList_Append(trash, object);
}

// Stores `object` at `place` and moves what was there to the trash.
void replace(PyObject*& place, PyObject* object, PyObject* trash) {
  if (place == object) return;
  PyObject* old = place;
  place = Py_XNewRef(object);
  discard(trash, old);
  Py_XDECREF(old);
}

}  // namespace

void Snapshot::restore_entry(Entry& entry, PyObject* trash) {
  switch (entry.kind) {
    case Kind::dict: return restore_dict(entry, trash);
    case Kind::function: return restore_function(entry, trash);
    case Kind::type: return restore_type(entry, trash);
    case Kind::builtin: return replace(reinterpret_cast<PyCFunctionObject*>(entry.object)->m_module, entry.contents[0], trash);
    case Kind::registry: return restore_registry(entry, trash);
    case Kind::list: {
      PyObject* old = PyList_GetSlice(entry.object, 0, PyList_GET_SIZE(entry.object));
      discard(trash, old);
      Py_XDECREF(old);
      PyObject* items = PyList_New(entry.count);
      if (items == nullptr) return;
      for (std::uint32_t i = 0; i < entry.count; ++i) PyList_SET_ITEM(items, i, Py_NewRef(entry.contents[i]));
      PyList_SetSlice(entry.object, 0, PyList_GET_SIZE(entry.object), items);
      Py_DECREF(items);
      return;
    }
    case Kind::set: {
      read(entry.object, entry.kind, contents_);
      for (PyObject* item : contents_) discard(trash, item);
      PySet_Clear(entry.object);
      for (std::uint32_t i = 0; i < entry.count; ++i) PySet_Add(entry.object, entry.contents[i]);
      const auto digest = entry.digest;  // which tells that its class was changed
      record(entry);                     // the same members, perhaps in another order
      entry.digest = digest;
      return;
    }
    case Kind::cell: {
      discard(trash, PyCell_GET(entry.object));
      PyCell_Set(entry.object, entry.contents[0]);
      return;
    }
    case Kind::instance: {
      const auto& offsets = slots_of(Py_TYPE(entry.object));
      for (std::size_t i = 0; i < offsets.size() && i < entry.count; ++i)
        replace(*reinterpret_cast<PyObject**>(reinterpret_cast<char*>(entry.object) + offsets[i]), entry.contents[i], trash);
      return;
    }
    case Kind::cache: return clear_lru_cache(entry.object);
    case Kind::fixed:
    case Kind::opaque:
    case Kind::module:
    case Kind::lock: return;  // cannot be restored, which difference() reports
  }
}

void Snapshot::restore_dict(Entry& entry, PyObject* trash) {
  PyObject* dict = entry.object;
  const auto owner = type_of_dict_.find(dict);
  // CPython forbids assignments to a static type, so that its caches do not follow its dict.
  if (owner != type_of_dict_.end() && !is_heap_type(owner->second)) return;
  read(dict, Kind::dict, contents_);
  for (PyObject* one : contents_) discard(trash, one);
  if (owner != type_of_dict_.end()) {
    // Through the type, whose slots and caches follow its dict, and by `type` itself, because a metatype may forbid it.
    auto* type = reinterpret_cast<PyObject*>(owner->second);
    PyObject* keys = PyDict_Keys(dict);
    for (Py_ssize_t i = 0; keys != nullptr && i < PyList_GET_SIZE(keys); ++i) {
      PyObject* key = PyList_GET_ITEM(keys, i);
      bool is_recorded = false;
      for (std::uint32_t k = 0; k < entry.count && !is_recorded; k += 2) is_recorded = entry.contents[k] == key;
      if (!is_recorded) PyType_Type.tp_setattro(type, key, nullptr);
    }
    Py_XDECREF(keys);
    for (std::uint32_t k = 0; k < entry.count; k += 2)
      if (PyDict_GetItemWithError(dict, entry.contents[k]) != entry.contents[k + 1])
        PyType_Type.tp_setattro(type, entry.contents[k], entry.contents[k + 1]);
    PyType_Modified(owner->second);
    bool is_complete = PyDict_GET_SIZE(dict) * 2 == static_cast<Py_ssize_t>(entry.count);
    for (std::uint32_t k = 0; k < entry.count && is_complete; k += 2)
      is_complete = PyDict_GetItemWithError(dict, entry.contents[k]) == entry.contents[k + 1];
    PyErr_Clear();
    if (is_complete) record(entry);  // the same names, perhaps in another order
    return;
  }
  if (Py_IS_TYPE(dict, &PyDict_Type)) {
    PyDict_Clear(dict);
    for (std::uint32_t k = 0; k < entry.count; k += 2) PyDict_SetItem(dict, entry.contents[k], entry.contents[k + 1]);
    return;
  }
  PyObject* done = PyObject_CallMethod(dict, "clear", nullptr);  // an OrderedDict has an order of its own
  Py_XDECREF(done);
  for (std::uint32_t k = 0; k < entry.count && done != nullptr; k += 2)
    if (PyObject_SetItem(dict, entry.contents[k], entry.contents[k + 1]) != 0) return;
}

void Snapshot::restore_function(const Entry& entry, PyObject* trash) {
  PyObject* function = entry.object;
  const auto parts = parts_of(function);
  for (PyObject** part : parts) discard(trash, *part);
  const auto recorded = [&](std::size_t part) { return entry.contents[part]; };
  if (*parts[0] != recorded(0)) PyObject_SetAttrString(function, "__code__", recorded(0));
  if (*parts[1] != recorded(1)) PyFunction_SetDefaults(function, recorded(1) != nullptr ? recorded(1) : Py_None);
  if (*parts[2] != recorded(2)) PyFunction_SetKwDefaults(function, recorded(2) != nullptr ? recorded(2) : Py_None);
  for (std::size_t part = 3; part < parts.size(); ++part) replace(*parts[part], recorded(part), trash);
}

// The name in C follows the name in Python, except for types that C code created.
void Snapshot::restore_type(const Entry& entry, PyObject* trash) {
  const auto names = names_of(entry.object);
  for (std::size_t part = 0; part < names.size(); ++part) replace(*names[part], entry.contents[part], trash);
  auto* heap_type = reinterpret_cast<PyHeapTypeObject*>(entry.object);
  heap_type->ht_type.tp_name = heap_type->_ht_tpname != nullptr ? heap_type->_ht_tpname : PyUnicode_AsUTF8(heap_type->ht_name);
}

// An abstract class creates the sets of its registry and caches when it first needs them; they hold weak references. The sets are
// kept, empty.
void Snapshot::restore_registry(const Entry& entry, PyObject* trash) {
  std::vector<PyObject*> sets;
  referents_of(entry.object, sets);
  for (PyObject* set : sets) {
    if (!PySet_Check(set) || find(set) != kNone) continue;
    read(set, Kind::set, contents_);
    for (PyObject* item : contents_) discard(trash, item);
    PySet_Clear(set);
    add(set);
    record(entries_.back());
  }
}

}  // namespace walle::vm

// Restoration of changed objects from a snapshot, by their kind.
#include <algorithm>

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
    case Kind::function: return restore_function(entry, trash);
    case Kind::type: return restore_type(entry, trash);
    case Kind::builtin: return replace(reinterpret_cast<PyCFunctionObject*>(entry.object)->m_module, entry.contents[0], trash);
    case Kind::registry: return restore_registry(entry, trash);
    case Kind::cache: return clear_lru_cache(entry.object);
    case Kind::fixed:
    case Kind::opaque:
    case Kind::module:
    case Kind::lock: return;  // difference() reports what cannot be restored
    case Kind::dict:
    case Kind::list:
    case Kind::set:
    case Kind::cell:
    case Kind::instance: break;
  }
  // CPython forbids assignments to a static type, so that its caches do not follow its dict.
  if (const auto owner = type_of_dict_.find(entry.object); owner != type_of_dict_.end() && !is_heap_type(owner->second)) return;
  read(entry.object, entry.kind, contents_);
  for (PyObject* one : contents_) discard(trash, one);
  assign(entry, {entry.contents, entry.contents + entry.count});
}

// Gives the object these contents. What it had before is dropped, so that the caller holds it. Sets a Python error where that
// fails.
void Snapshot::assign(Entry& entry, const std::vector<PyObject*>& contents) {
  PyObject* object = entry.object;
  switch (entry.kind) {
    case Kind::dict: {
      if (const auto owner = type_of_dict_.find(object); owner != type_of_dict_.end())
        return assign_type_dict(entry, owner->second, contents);
      const bool is_plain = PyDict_CheckExact(object);
      if (is_plain) {
        PyDict_Clear(object);
      } else {
        Py_XDECREF(PyObject_CallMethod(object, "clear", nullptr));  // an OrderedDict has an order of its own
      }
      for (std::size_t k = 0; k < contents.size() && PyErr_Occurred() == nullptr; k += 2)
        (is_plain ? PyDict_SetItem : PyObject_SetItem)(object, contents[k], contents[k + 1]);
      return;
    }
    case Kind::list: {
      PyObject* items = PyList_New(static_cast<Py_ssize_t>(contents.size()));
      if (items == nullptr) return;
      for (std::size_t i = 0; i < contents.size(); ++i)
        PyList_SET_ITEM(items, static_cast<Py_ssize_t>(i), Py_NewRef(contents[i]));
      PyList_SetSlice(object, 0, PyList_GET_SIZE(object), items);
      Py_DECREF(items);
      return;
    }
    case Kind::set: {
      PySet_Clear(object);
      for (std::size_t i = 0; i < contents.size() && PyErr_Occurred() == nullptr; ++i) PySet_Add(object, contents[i]);
      if (contents.size() == entry.count && std::equal(contents.begin(), contents.end(), entry.contents)) {
        const auto digest = entry.digest;  // the digest shows if the class was changed
        record(entry);                     // the same members, perhaps in another order
        entry.digest = digest;
      }
      return;
    }
    case Kind::cell: PyCell_Set(object, contents[0]); return;
    case Kind::instance: {
      const auto& offsets = slots_of(Py_TYPE(object));
      for (std::size_t i = 0; i < offsets.size() && i < contents.size(); ++i)
        Py_XSETREF(*reinterpret_cast<PyObject**>(reinterpret_cast<char*>(object) + offsets[i]), Py_XNewRef(contents[i]));
      return;
    }
    case Kind::function: {
      const auto parts = parts_of(object);
      for (std::size_t part = kFirstPassivePart; part < parts.size(); ++part)
        Py_XSETREF(*parts[part], Py_XNewRef(contents[part]));
      return;
    }
    default: return;
  }
}

// Through the type, whose slots and caches follow its dict, and by `type` itself, because a metatype may forbid it.
void Snapshot::assign_type_dict(Entry& entry, PyTypeObject* owner, const std::vector<PyObject*>& contents) {
  PyObject *dict = entry.object, *type = as_object(owner);
  PyObject* keys = PyDict_Keys(dict);
  for (Py_ssize_t i = 0; keys != nullptr && i < PyList_GET_SIZE(keys); ++i) {
    PyObject* key = PyList_GET_ITEM(keys, i);
    bool is_wanted = false;
    for (std::size_t k = 0; k < contents.size() && !is_wanted; k += 2) is_wanted = contents[k] == key;
    if (!is_wanted) PyType_Type.tp_setattro(type, key, nullptr);
  }
  Py_XDECREF(keys);
  for (std::size_t k = 0; k < contents.size(); k += 2)
    if (PyDict_GetItemWithError(dict, contents[k]) != contents[k + 1])
      PyType_Type.tp_setattro(type, contents[k], contents[k + 1]);
  PyType_Modified(owner);
  bool is_restored = PyDict_GET_SIZE(dict) * 2 == static_cast<Py_ssize_t>(entry.count);
  for (std::uint32_t k = 0; k < entry.count && is_restored; k += 2)
    is_restored = PyDict_GetItemWithError(dict, entry.contents[k]) == entry.contents[k + 1];
  PyErr_Clear();
  if (is_restored) record(entry);  // the same names, perhaps in another order
}

void Snapshot::restore_function(const Entry& entry, PyObject* trash) {
  PyObject* function = entry.object;
  const auto parts = parts_of(function);
  for (PyObject** part : parts) discard(trash, *part);
  const auto recorded = [&](std::size_t part) { return entry.contents[part]; };
  if (*parts[0] != recorded(0)) PyObject_SetAttrString(function, "__code__", recorded(0));
  if (*parts[1] != recorded(1)) PyFunction_SetDefaults(function, recorded(1) != nullptr ? recorded(1) : Py_None);
  if (*parts[2] != recorded(2)) PyFunction_SetKwDefaults(function, recorded(2) != nullptr ? recorded(2) : Py_None);
  for (std::size_t part = kFirstPassivePart; part < parts.size(); ++part) replace(*parts[part], recorded(part), trash);
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

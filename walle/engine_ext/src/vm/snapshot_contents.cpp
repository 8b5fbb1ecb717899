// Contents that a snapshot records of an object, by the object's kind.
#include <algorithm>
#include <cstring>

#include "vm/snapshot.h"
#include "vm/snapshot_objects.h"

namespace walle::vm {

Snapshot::Kind Snapshot::kind_of(PyObject* object) {
  if (PyTuple_CheckExact(object) || PyFrozenSet_CheckExact(object) || PyCode_Check(object)) return Kind::fixed;
  if (PyModule_Check(object)) return Kind::module;
  if (PyDict_Check(object)) return Kind::dict;
  if (PyList_Check(object)) return Kind::list;
  if (PySet_Check(object)) return Kind::set;
  if (PyFunction_Check(object)) return Kind::function;
  if (PyCell_Check(object)) return Kind::cell;
  if (PyCFunction_Check(object)) return Kind::builtin;
  if (PyType_Check(object) && is_heap_type(reinterpret_cast<PyTypeObject*>(object))) return Kind::type;
  if (std::strcmp(Py_TYPE(object)->tp_name, "_abc._abc_data") == 0) return Kind::registry;
  if (is_lock(object)) return Kind::lock;
  if (std::strcmp(Py_TYPE(object)->tp_name, "functools._lru_cache_wrapper") == 0) return Kind::cache;
  if (!PyType_Check(object) && is_heap_type(Py_TYPE(object))) return Kind::instance;
  return Kind::opaque;
}

// Returns the offsets of the __slots__ in instances of the type.
const std::vector<Py_ssize_t>& Snapshot::slots_of(PyTypeObject* type) {
  const auto [place, is_new] = slots_.try_emplace(type);
  std::vector<Py_ssize_t>& offsets = place->second;
  if (!is_new || type->tp_mro == nullptr) return offsets;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(type->tp_mro); ++i) {
    PyObject* dict = PyType_GetDict(reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(type->tp_mro, i)));
    PyObject *key = nullptr, *value = nullptr;
    for (Py_ssize_t position = 0; dict != nullptr && PyDict_Next(dict, &position, &key, &value);) {
      if (!Py_IS_TYPE(value, &PyMemberDescr_Type)) continue;
      const PyMemberDef* member = reinterpret_cast<PyMemberDescrObject*>(value)->d_member;
      if (member->type == Py_T_OBJECT_EX && !(member->flags & Py_READONLY)) offsets.push_back(member->offset);
    }
    Py_XDECREF(dict);
  }
  std::sort(offsets.begin(), offsets.end());
  return offsets;
}

// Excludes the table of an lru_cache, which is cleared as a whole. From Python 3.14 on the collector knows it as it does any
// dict.
void Snapshot::exclude_table(PyObject* cache) {
  PyObject* attributes = PyObject_GenericGetDict(cache, nullptr);
  PyErr_Clear();
  std::vector<PyObject*> found;
  referents_of(cache, found);
  for (PyObject* one : found) {
    if (!PyDict_CheckExact(one) || one == attributes) continue;
    add(one);
    entries_[find(one)].kind = Kind::fixed;
  }
  Py_XDECREF(attributes);
}

// Clears an lru_cache and returns whether it held anything. Dropping that may run code of a task.
bool Snapshot::clear_cache(PyObject* cache) {
  std::vector<PyObject*> found;
  referents_of(cache, found);
  const bool is_empty = std::all_of(found.begin(), found.end(), [&](PyObject* one) {
    const std::uint32_t number = find(one);
    return number == kNone || !PyDict_CheckExact(one) || entries_[number].kind != Kind::fixed || PyDict_GET_SIZE(one) == 0;
  });
  clear_lru_cache(cache);  // an empty one too, for its counts
  return !is_empty;
}

// Adds the dict of a type or an instance, which the collector does not always know. An instance gets its dict as an object of its
// own only when it is first asked for.
void Snapshot::prepare(PyObject* object) {
  if (PyType_Check(object)) {
    auto* type = reinterpret_cast<PyTypeObject*>(object);
    if (PyObject* dict = PyType_GetDict(type)) {
      add(dict);
      if (is_abstract(dict)) clear_abstract_caches(object);
      type_of_dict_[dict] = type;
      if (!is_heap_type(type)) type_writes_.watch(type, dict);
      Py_DECREF(dict);
    }
  } else if (kind_of(object) == Kind::cache) {
    exclude_table(object);
  } else if (is_heap_type(Py_TYPE(object)) && (Py_TYPE(object)->tp_flags & Py_TPFLAGS_MANAGED_DICT)) {
    PyObject* dict = PyObject_GenericGetDict(object, nullptr);
    if (dict == nullptr)
      PyErr_Clear();
    else
      add(dict);
    Py_XDECREF(dict);
  }
}

void Snapshot::read(PyObject* object, Kind kind, std::vector<PyObject*>& contents) {
  contents.clear();
  switch (kind) {
    case Kind::dict: {
      PyObject *key = nullptr, *value = nullptr;
      for (Py_ssize_t position = 0; PyDict_Next(object, &position, &key, &value);) {
        contents.push_back(key);
        contents.push_back(value);
      }
      break;
    }
    case Kind::list:
      for (Py_ssize_t i = 0; i < PyList_GET_SIZE(object); ++i) contents.push_back(PyList_GET_ITEM(object, i));
      break;
    case Kind::set: {
      PyObject* iterator = PySet_Type.tp_iter(object);
      while (PyObject* item = iterator != nullptr ? Py_TYPE(iterator)->tp_iternext(iterator) : nullptr) {
        contents.push_back(item);
        Py_DECREF(item);  // the set holds it
      }
      Py_XDECREF(iterator);
      PyErr_Clear();
      break;
    }
    case Kind::function:
      for (PyObject** part : parts_of(object)) contents.push_back(*part);
      break;
    case Kind::builtin: contents.push_back(reinterpret_cast<PyCFunctionObject*>(object)->m_module); break;
    case Kind::type:
      for (PyObject** name : names_of(object)) contents.push_back(*name);
      break;
    case Kind::cell: contents.push_back(PyCell_GET(object)); break;
    case Kind::instance:
      for (const Py_ssize_t offset : slots_of(Py_TYPE(object)))
        contents.push_back(*reinterpret_cast<PyObject**>(reinterpret_cast<char*>(object) + offset));
      break;
    case Kind::module: contents.push_back(reinterpret_cast<PyObject*>(Py_TYPE(object))); break;
    case Kind::lock: contents.push_back(is_locked(object) == 0 ? Py_False : Py_True); break;
    case Kind::fixed:
    case Kind::opaque:
    case Kind::cache:
    case Kind::registry: break;
  }
}

// Returns whether a digest of the object's references is recorded, besides the contents that can be restored. A dict, list or set
// of a subclass has further state: its class, a default_factory.
bool Snapshot::has_digest(PyObject* object, Kind kind) {
  switch (kind) {
    case Kind::opaque:
    case Kind::cache:
    case Kind::instance:
    case Kind::type:
    case Kind::builtin:
    case Kind::module:
    case Kind::lock: return true;
    case Kind::dict: return !PyDict_CheckExact(object);
    case Kind::list: return !PyList_CheckExact(object);
    case Kind::set: return !PySet_CheckExact(object);
    case Kind::fixed:
    case Kind::function:
    case Kind::cell:
    case Kind::registry: return false;
  }
  return true;
}

// Returns the object's present contents, which the caller then owns.
std::vector<PyObject*> Snapshot::contents_of(const Entry& entry) {
  std::vector<PyObject*> contents;
  read(entry.object, entry.kind, contents);
  for (PyObject* object : contents) Py_XINCREF(object);
  return contents;
}

void Snapshot::record(Entry& entry) {
  if (entry.kind == Kind::cache) clear_lru_cache(entry.object);
  read(entry.object, entry.kind, contents_);
  PyObject** old = entry.contents;
  const std::uint32_t old_count = entry.count;
  entry.count = static_cast<std::uint32_t>(contents_.size());
  entry.contents = contents_.empty() ? nullptr : new PyObject*[contents_.size()];
  for (std::uint32_t i = 0; i < entry.count; ++i) entry.contents[i] = Py_XNewRef(contents_[i]);
  if (PyType_Check(entry.object)) slots_of_types_.record(reinterpret_cast<PyTypeObject*>(entry.object));
  if (has_digest(entry.object, entry.kind)) entry.digest = digest_of(entry.object, entry.kind == Kind::set);
  for (std::uint32_t i = 0; i < old_count; ++i) Py_XDECREF(old[i]);
  delete[] old;
}

bool Snapshot::is_digest_unchanged(const Entry& entry) {
  return !has_digest(entry.object, entry.kind) || digest_of(entry.object, entry.kind == Kind::set) == entry.digest;
}

bool Snapshot::is_unchanged(const Entry& entry) {
  switch (entry.kind) {
    case Kind::fixed: return true;
    case Kind::opaque:
    case Kind::cache: return digest_of(entry.object) == entry.digest;
    case Kind::registry: {
      std::vector<PyObject*> sets;
      referents_of(entry.object, sets);
      return std::all_of(sets.begin(), sets.end(), [&](PyObject* one) { return !PySet_Check(one) || find(one) != kNone; });
    }
    case Kind::dict: {
      if (PyDict_GET_SIZE(entry.object) * 2 != static_cast<Py_ssize_t>(entry.count)) return false;
      PyObject *key = nullptr, *value = nullptr;
      std::uint32_t i = 0;
      for (Py_ssize_t position = 0; PyDict_Next(entry.object, &position, &key, &value); i += 2)
        if (i >= entry.count || key != entry.contents[i] || value != entry.contents[i + 1]) return false;
      return is_digest_unchanged(entry);
    }
    default:
      read(entry.object, entry.kind, contents_);
      return contents_.size() == entry.count && std::equal(contents_.begin(), contents_.end(), entry.contents) &&
             is_digest_unchanged(entry);
  }
}

}  // namespace walle::vm

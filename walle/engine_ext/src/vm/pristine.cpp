#include "vm/pristine.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace walle::vm {

namespace {

constexpr std::uint32_t kNone = 0xffffffffu;

bool is_heap_type(PyTypeObject* type) { return (type->tp_flags & Py_TPFLAGS_HEAPTYPE) != 0; }

int collect(PyObject* object, void* found) {
  static_cast<std::vector<PyObject*>*>(found)->push_back(object);
  return 0;
}

int mix(PyObject* object, void* digest) {
  auto& value = *static_cast<std::uint64_t*>(digest);
  value = (value ^ reinterpret_cast<std::uintptr_t>(object)) * 0x100000001b3u;
  return 0;
}

std::uint64_t digest_of(PyObject* object) {
  std::uint64_t digest = 0xcbf29ce484222325u;
  if (Py_TYPE(object)->tp_traverse != nullptr && PyObject_IS_GC(object)) Py_TYPE(object)->tp_traverse(object, mix, &digest);
  return digest;
}

// The interpreter's table of interned strings, whose references to them do not count; null where the collector does not
// know it (before Python 3.14).
PyObject* table_of_interned(const std::vector<PyObject*>& objects) {
  PyObject* probe = PyUnicode_InternFromString("walle: nobody else interns this");
  PyObject* table = nullptr;
  for (PyObject* object : objects)
    if (PyDict_CheckExact(object) && PyDict_GetItemWithError(object, probe) == probe) table = object;
  PyErr_Clear();
  Py_XDECREF(probe);
  return table;
}

void throw_away(PyObject* trash, PyObject* object) {
  if (object != nullptr) PyList_Append(trash, object);
}

// Puts `object` at `place` and what was there into the trash.
void replace(PyObject*& place, PyObject* object, PyObject* trash) {
  if (place == object) return;
  PyObject* old = place;
  place = Py_XNewRef(object);
  throw_away(trash, old);
  Py_XDECREF(old);
}

std::size_t hash_of(PyObject* object) { return reinterpret_cast<std::uintptr_t>(object) / 16 * 0x9e3779b97f4a7c15u >> 20; }

void clear_cache(PyObject* object) {
  PyObject* done = PyObject_CallMethod(object, "cache_clear", nullptr);
  Py_XDECREF(done);
}

bool is_abstract(PyObject* dict_of_type) { return PyDict_GetItemString(dict_of_type, "_abc_impl") != nullptr; }

// What an abstract class remembers of isinstance() is kept as empty: a memory of another time may be wrong now.
void clear_abstract_caches(PyObject* type) {
  PyObject* abc = PyImport_ImportModule("_abc");
  PyObject* done = abc != nullptr ? PyObject_CallMethod(abc, "_reset_caches", "O", type) : nullptr;
  Py_XDECREF(done);
  Py_XDECREF(abc);
  PyErr_Clear();
}

// The parts of a function that Python code can change, in the order in which they are kept.
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

// What a type that Python code can change has beside its dict and what the collector sees.
std::array<PyObject**, 2> names_of(PyObject* type) {
  auto* heap_type = reinterpret_cast<PyHeapTypeObject*>(type);
  return {&heap_type->ht_name, &heap_type->ht_qualname};
}

}  // namespace

Pristine::Kind Pristine::kind_of(PyObject* object) {
  // What a module keeps in C is none of the collector's business; its dict has an entry of its own.
  if (PyTuple_CheckExact(object) || PyFrozenSet_CheckExact(object) || PyCode_Check(object) || PyModule_Check(object))
    return Kind::fixed;
  if (PyDict_Check(object)) return Kind::dict;
  if (PyList_Check(object)) return Kind::list;
  if (PySet_Check(object)) return Kind::set;
  if (PyFunction_Check(object)) return Kind::function;
  if (PyCell_Check(object)) return Kind::cell;
  if (PyCFunction_Check(object)) return Kind::builtin;
  if (PyType_Check(object) && is_heap_type(reinterpret_cast<PyTypeObject*>(object))) return Kind::type;
  if (std::strcmp(Py_TYPE(object)->tp_name, "_abc._abc_data") == 0) return Kind::registry;
  if (std::strcmp(Py_TYPE(object)->tp_name, "functools._lru_cache_wrapper") == 0) return Kind::cache;
  if (!PyType_Check(object) && is_heap_type(Py_TYPE(object))) return Kind::instance;
  return Kind::opaque;
}

// Where instances of the type have their __slots__.
const std::vector<Py_ssize_t>& Pristine::slots_of(PyTypeObject* type) {
  const auto [place, is_new] = slots_.try_emplace(type);
  if (!is_new || type->tp_mro == nullptr) return place->second;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(type->tp_mro); ++i) {
    PyObject* dict = PyType_GetDict(reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(type->tp_mro, i)));
    PyObject *key = nullptr, *value = nullptr;
    for (Py_ssize_t position = 0; dict != nullptr && PyDict_Next(dict, &position, &key, &value);) {
      if (!Py_IS_TYPE(value, &PyMemberDescr_Type)) continue;
      const PyMemberDef* member = reinterpret_cast<PyMemberDescrObject*>(value)->d_member;
      if (member->type == Py_T_OBJECT_EX && !(member->flags & Py_READONLY)) place->second.push_back(member->offset);
    }
    Py_XDECREF(dict);
  }
  std::sort(place->second.begin(), place->second.end());
  return place->second;
}

std::uint32_t Pristine::find(PyObject* object) const {
  if (table_.empty()) return kNone;
  const std::size_t mask = table_.size() - 1;
  for (std::size_t slot = hash_of(object) & mask; table_[slot] != 0; slot = (slot + 1) & mask)
    if (entries_[table_[slot] - 1].object == object) return table_[slot] - 1;
  return kNone;
}

void Pristine::rehash(std::size_t slots) {
  table_.assign(slots, 0);
  for (std::uint32_t number = 0; number < entries_.size(); ++number) {
    std::size_t slot = hash_of(entries_[number].object) & (slots - 1);
    while (table_[slot] != 0) slot = (slot + 1) & (slots - 1);
    table_[slot] = number + 1;
  }
}

bool Pristine::add(PyObject* object) {
  if (find(object) != kNone) return false;
  entries_.push_back({Py_NewRef(object), kind_of(object), 0, nullptr, 0});
  if (entries_.size() * 2 > table_.size()) {
    rehash(std::max<std::size_t>(1024, table_.size() * 2));
  } else {
    const std::size_t mask = table_.size() - 1;
    std::size_t slot = hash_of(object) & mask;
    while (table_[slot] != 0) slot = (slot + 1) & mask;
    table_[slot] = static_cast<std::uint32_t>(entries_.size());
  }
  return true;
}

// The table of an lru_cache is the cache's own business, which is emptied as a whole; from Python 3.14 on the collector
// knows it as any dict.
void Pristine::pass_over_table(PyObject* cache) {
  PyObject* attributes = PyObject_GenericGetDict(cache, nullptr);
  PyErr_Clear();
  std::vector<PyObject*> found;
  Py_TYPE(cache)->tp_traverse(cache, collect, &found);
  for (PyObject* one : found) {
    if (!PyDict_CheckExact(one) || one == attributes) continue;
    add(one);
    entries_[find(one)].kind = Kind::fixed;
  }
  Py_XDECREF(attributes);
}

// Makes an instance have its dict as an object of its own, which it otherwise gets when someone asks for it.
void Pristine::prepare(PyObject* object) {
  if (PyType_Check(object) && is_heap_type(reinterpret_cast<PyTypeObject*>(object))) {
    auto* type = reinterpret_cast<PyTypeObject*>(object);
    if (PyObject* dict = PyType_GetDict(type)) {
      add(dict);
      if (is_abstract(dict)) clear_abstract_caches(object);
      type_of_dict_[dict] = type;
      Py_DECREF(dict);
    }
  } else if (kind_of(object) == Kind::cache) {
    pass_over_table(object);
  } else if (is_heap_type(Py_TYPE(object)) && (Py_TYPE(object)->tp_flags & Py_TPFLAGS_MANAGED_DICT)) {
    PyObject* dict = PyObject_GenericGetDict(object, nullptr);
    if (dict == nullptr)
      PyErr_Clear();
    else
      add(dict);
    Py_XDECREF(dict);
  }
}

// Adds what the entries from `first` on lead to, and keeps their contents.
void Pristine::close_over(std::size_t first) {
  std::vector<PyObject*> found;
  for (std::size_t number = first; number < entries_.size(); ++number) {
    PyObject* object = entries_[number].object;
    prepare(object);
    found.clear();
    if (Py_TYPE(object)->tp_traverse != nullptr && PyObject_IS_GC(object)) Py_TYPE(object)->tp_traverse(object, collect, &found);
    for (PyObject* one : found)
      if (PyObject_IS_GC(one) && !PyFrame_Check(one)) add(one);
  }
  for (std::size_t number = first; number < entries_.size(); ++number) keep(entries_[number]);
}

void Pristine::read(PyObject* object, Kind kind, std::vector<PyObject*>& contents) {
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
    case Kind::fixed:
    case Kind::opaque:
    case Kind::cache:
    case Kind::registry: break;
  }
}

// Whether what such an object refers to is kept as a digest, beside what of it can be put back.
bool Pristine::has_digest(Kind kind) {
  return kind == Kind::opaque || kind == Kind::cache || kind == Kind::instance || kind == Kind::type || kind == Kind::builtin;
}

void Pristine::keep(Entry& entry) {
  if (entry.kind == Kind::cache) clear_cache(entry.object);
  read(entry.object, entry.kind, now_);
  PyObject** old = entry.contents;
  const std::uint32_t old_count = entry.count;
  entry.count = static_cast<std::uint32_t>(now_.size());
  entry.contents = now_.empty() ? nullptr : new PyObject*[now_.size()];
  for (std::uint32_t i = 0; i < entry.count; ++i) entry.contents[i] = Py_XNewRef(now_[i]);
  if (has_digest(entry.kind)) entry.digest = digest_of(entry.object);
  for (std::uint32_t i = 0; i < old_count; ++i) Py_XDECREF(old[i]);
  delete[] old;
}

bool Pristine::same(const Entry& entry) {
  switch (entry.kind) {
    case Kind::fixed: return true;
    case Kind::opaque:
    case Kind::cache: return digest_of(entry.object) == entry.digest;
    case Kind::registry: {
      std::vector<PyObject*> sets;
      Py_TYPE(entry.object)->tp_traverse(entry.object, collect, &sets);
      return std::all_of(sets.begin(), sets.end(), [&](PyObject* one) { return !PySet_Check(one) || find(one) != kNone; });
    }
    case Kind::dict: {
      if (PyDict_GET_SIZE(entry.object) * 2 != static_cast<Py_ssize_t>(entry.count)) return false;
      PyObject *key = nullptr, *value = nullptr;
      std::uint32_t i = 0;
      for (Py_ssize_t position = 0; PyDict_Next(entry.object, &position, &key, &value); i += 2)
        if (i >= entry.count || key != entry.contents[i] || value != entry.contents[i + 1]) return false;
      return true;
    }
    default:
      read(entry.object, entry.kind, now_);
      return now_.size() == entry.count && std::equal(now_.begin(), now_.end(), entry.contents) &&
             (!has_digest(entry.kind) || digest_of(entry.object) == entry.digest);
  }
}

// Whether a changed object would make an import come out differently: a type, a function, or a name of a module that had a
// meaning before. What modules keep while they run (caches, tables, names that are set at first use) does not count.
bool Pristine::is_tampered(const Entry& entry) {
  if (entry.kind == Kind::function) {
    const auto parts = parts_of(entry.object);
    return *parts[0] != entry.contents[0] || *parts[1] != entry.contents[1] || *parts[2] != entry.contents[2];
  }
  if (entry.kind == Kind::opaque || entry.kind == Kind::type) return true;
  if (entry.kind != Kind::dict) return false;
  const bool is_types = type_of_dict_.contains(entry.object);
  const bool is_modules = PyDict_GetItemString(entry.object, "__spec__") != nullptr;
  if (!is_types && !is_modules) return false;
  for (std::uint32_t i = 0; i < entry.count; i += 2) {
    PyObject* value = PyDict_GetItemWithError(entry.object, entry.contents[i]);
    if (value != entry.contents[i + 1] && entry.contents[i + 1] != Py_None) return true;
  }
  PyErr_Clear();
  return false;
}

// Every object that the collector knows, but for the table of interned strings.
std::vector<PyObject*> Pristine::objects() const {
  std::pair<std::vector<PyObject*>, PyObject*> found = {{}, interned_};
  PyUnstable_GC_VisitObjects(
      [](PyObject* object, void* given) {
        auto& [all, interned] = *static_cast<decltype(found)*>(given);
        if (object != interned) all.push_back(object);
        return 1;
      },
      &found);
  return found.first;
}

void Pristine::take() {
  interned_ = table_of_interned(objects());
  for (PyObject* object : objects())
    if (!PyFrame_Check(object)) add(object);
  close_over(0);
  // A first look may make what it looks at (the dict of an instance): what others refer to is kept once all is made.
  for (Entry& entry : entries_) keep(entry);
}

int Pristine::restore(PyObject* trash) {
  int differed = 0;
  for (std::size_t number = 0; number < entries_.size(); ++number) {
    if (same(entries_[number])) continue;
    ++differed;
    put_back(entries_[number], trash);
    if (PyErr_Occurred() != nullptr) return -1;
  }
  return differed;
}

void Pristine::put_back(Entry& entry, PyObject* trash) {
  switch (entry.kind) {
    case Kind::dict: return put_back_dict(entry, trash);
    case Kind::function: return put_back_function(entry, trash);
    case Kind::type: return put_back_type(entry, trash);
    case Kind::builtin: return replace(reinterpret_cast<PyCFunctionObject*>(entry.object)->m_module, entry.contents[0], trash);
    case Kind::registry: return adopt_registry(entry, trash);
    case Kind::list: {
      PyObject* old = PyList_GetSlice(entry.object, 0, PyList_GET_SIZE(entry.object));
      throw_away(trash, old);
      Py_XDECREF(old);
      PyObject* items = PyList_New(entry.count);
      if (items == nullptr) return;
      for (std::uint32_t i = 0; i < entry.count; ++i) PyList_SET_ITEM(items, i, Py_NewRef(entry.contents[i]));
      PyList_SetSlice(entry.object, 0, PyList_GET_SIZE(entry.object), items);
      Py_DECREF(items);
      return;
    }
    case Kind::set: {
      read(entry.object, entry.kind, now_);
      for (PyObject* item : now_) throw_away(trash, item);
      PySet_Clear(entry.object);
      for (std::uint32_t i = 0; i < entry.count; ++i) PySet_Add(entry.object, entry.contents[i]);
      return keep(entry);  // the same members, maybe in another order
    }
    case Kind::cell: {
      throw_away(trash, PyCell_GET(entry.object));
      PyCell_Set(entry.object, entry.contents[0]);
      return;
    }
    case Kind::instance: {
      const auto& offsets = slots_of(Py_TYPE(entry.object));
      for (std::size_t i = 0; i < offsets.size() && i < entry.count; ++i)
        replace(*reinterpret_cast<PyObject**>(reinterpret_cast<char*>(entry.object) + offsets[i]), entry.contents[i], trash);
      return;
    }
    case Kind::cache: return clear_cache(entry.object);
    case Kind::fixed:
    case Kind::opaque: return;  // there is no way back, which `difference` tells
  }
}

void Pristine::put_back_dict(Entry& entry, PyObject* trash) {
  PyObject* dict = entry.object;
  read(dict, Kind::dict, now_);
  for (PyObject* one : now_) throw_away(trash, one);
  if (const auto owner = type_of_dict_.find(dict); owner != type_of_dict_.end()) {
    // Through the type, which has slots and caches that follow its dict; of the base type, as a metatype may forbid it.
    auto* type = reinterpret_cast<PyObject*>(owner->second);
    PyObject* keys = PyDict_Keys(dict);
    for (Py_ssize_t i = 0; keys != nullptr && i < PyList_GET_SIZE(keys); ++i) {
      PyObject* key = PyList_GET_ITEM(keys, i);
      bool known = false;
      for (std::uint32_t k = 0; k < entry.count && !known; k += 2) known = entry.contents[k] == key;
      if (!known) PyType_Type.tp_setattro(type, key, nullptr);
    }
    Py_XDECREF(keys);
    for (std::uint32_t k = 0; k < entry.count; k += 2)
      if (PyDict_GetItemWithError(dict, entry.contents[k]) != entry.contents[k + 1])
        PyType_Type.tp_setattro(type, entry.contents[k], entry.contents[k + 1]);
    PyType_Modified(owner->second);
    bool whole = PyDict_GET_SIZE(dict) * 2 == static_cast<Py_ssize_t>(entry.count);
    for (std::uint32_t k = 0; k < entry.count && whole; k += 2)
      whole = PyDict_GetItemWithError(dict, entry.contents[k]) == entry.contents[k + 1];
    PyErr_Clear();
    if (whole) keep(entry);  // the same names, maybe in another order
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

void Pristine::put_back_function(const Entry& entry, PyObject* trash) {
  PyObject* function = entry.object;
  const auto parts = parts_of(function);
  for (PyObject** part : parts) throw_away(trash, *part);
  const auto kept = [&](std::size_t part) { return entry.contents[part]; };
  if (*parts[0] != kept(0)) PyObject_SetAttrString(function, "__code__", kept(0));
  if (*parts[1] != kept(1)) PyFunction_SetDefaults(function, kept(1) != nullptr ? kept(1) : Py_None);
  if (*parts[2] != kept(2)) PyFunction_SetKwDefaults(function, kept(2) != nullptr ? kept(2) : Py_None);
  for (std::size_t part = 3; part < parts.size(); ++part) replace(*parts[part], kept(part), trash);
}

// The name in C follows the name in Python, but for types that C code made.
void Pristine::put_back_type(const Entry& entry, PyObject* trash) {
  const auto names = names_of(entry.object);
  for (std::size_t part = 0; part < names.size(); ++part) replace(*names[part], entry.contents[part], trash);
  auto* heap_type = reinterpret_cast<PyHeapTypeObject*>(entry.object);
  heap_type->ht_type.tp_name = heap_type->_ht_tpname != nullptr ? heap_type->_ht_tpname : PyUnicode_AsUTF8(heap_type->ht_name);
}

// An abstract class makes the sets of its registry and caches when it first needs them; they hold weak references. They stay,
// empty.
void Pristine::adopt_registry(const Entry& entry, PyObject* trash) {
  std::vector<PyObject*> sets;
  Py_TYPE(entry.object)->tp_traverse(entry.object, collect, &sets);
  for (PyObject* set : sets) {
    if (!PySet_Check(set) || find(set) != kNone) continue;
    read(set, Kind::set, now_);
    for (PyObject* item : now_) throw_away(trash, item);
    PySet_Clear(set);
    add(set);
    keep(entries_.back());
  }
}

std::string Pristine::name_of(const Entry& entry) const {
  PyObject* object = entry.object;
  std::string text = std::string("a ") + Py_TYPE(object)->tp_name;
  PyObject* name = nullptr;
  if (const auto type = type_of_dict_.find(object); type != type_of_dict_.end()) {
    name = PyObject_GetAttrString(reinterpret_cast<PyObject*>(type->second), "__qualname__");
  } else if (entry.kind == Kind::dict) {
    if (PyDict_GetItemString(object, "__spec__") != nullptr) name = Py_XNewRef(PyDict_GetItemString(object, "__name__"));
  } else if (PyFunction_Check(object) || PyType_Check(object)) {
    name = PyObject_GetAttrString(object, "__qualname__");
  }
  if (const char* utf8 = name != nullptr && PyUnicode_Check(name) ? PyUnicode_AsUTF8(name) : nullptr) text = utf8;
  Py_XDECREF(name);
  PyErr_Clear();
  return text;
}

std::string Pristine::difference() {
  for (const Entry& entry : entries_)
    if (!same(entry)) return name_of(entry) + " is not as it was";
  std::size_t strangers = 0;
  std::string first;
  for (PyObject* object : objects()) {
    if (find(object) != kNone) continue;
    if (++strangers == 1) first = Py_TYPE(object)->tp_name;
  }
  if (strangers == 0) return "";
  return std::to_string(strangers) + " objects were left behind, the first a " + first;
}

void Pristine::before_import() {
  differed_.assign(entries_.size(), false);
  for (std::size_t number = 0; number < entries_.size(); ++number) {
    const Entry& entry = entries_[number];
    if (same(entry)) continue;
    differed_[number] = true;
    if (spoilt_.empty() && is_tampered(entry)) spoilt_ = "a module was loaded while " + name_of(entry) + " was changed";
  }
  tenants_.clear();
  for (PyObject* object : objects())
    if (find(object) == kNone) tenants_.push_back(Py_NewRef(object));  // held, so that none of their addresses is given anew
  std::sort(tenants_.begin(), tenants_.end());
}

void Pristine::after_import() {
  const std::size_t known = entries_.size();
  for (const auto& [dict, type] : type_of_dict_)
    if (is_abstract(dict)) clear_abstract_caches(reinterpret_cast<PyObject*>(type));
  for (std::size_t number = 0; number < differed_.size(); ++number) {
    Entry& entry = entries_[number];
    if (differed_[number] || same(entry)) continue;
    std::vector<PyObject*> found;
    if (Py_TYPE(entry.object)->tp_traverse != nullptr) Py_TYPE(entry.object)->tp_traverse(entry.object, collect, &found);
    for (PyObject* one : found)
      if (PyObject_IS_GC(one) && !PyFrame_Check(one)) add(one);
    keep(entries_[number]);
  }
  // What else is new is the module's too: types that are not the collector's keep their dicts and subclasses to themselves.
  for (PyObject* object : objects())
    if (!PyFrame_Check(object) && !std::binary_search(tenants_.begin(), tenants_.end(), object)) add(object);
  close_over(known);
  for (std::size_t number = known; number < entries_.size(); ++number) {
    keep(entries_[number]);
    if (spoilt_.empty() && std::binary_search(tenants_.begin(), tenants_.end(), entries_[number].object))
      spoilt_ = "a module that was loaded holds the task's " + name_of(entries_[number]);
  }
  for (PyObject* object : std::exchange(tenants_, {})) Py_DECREF(object);
}

std::size_t Pristine::bytes() const {
  std::size_t total = entries_.capacity() * sizeof(Entry) + table_.capacity() * sizeof(std::uint32_t);
  for (const Entry& entry : entries_) total += entry.count * sizeof(PyObject*);
  return total;
}

void Pristine::release() {
  for (Entry& entry : entries_) {
    for (std::uint32_t i = 0; i < entry.count; ++i) Py_XDECREF(entry.contents[i]);
    delete[] entry.contents;
    entry.count = 0;
  }
  for (const Entry& entry : entries_) Py_DECREF(entry.object);
  entries_.clear();
  table_.clear();
}

}  // namespace walle::vm

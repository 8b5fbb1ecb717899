#include "vm/type_slots.h"

#include <cstddef>
#include <cstring>

#include "vm/snapshot_objects.h"

namespace walle::vm {

namespace {

// Set and cleared by CPython as attributes are looked up.
constexpr unsigned long kVolatileFlags = Py_TPFLAGS_VALID_VERSION_TAG;
// Value of tp_versions_used of a class whose attributes CPython never caches, because its metaclass has an own mro().
constexpr unsigned kNeverCached = 30000;

template <typename T>
void mix_word(std::uint64_t& digest, T value) {
  static_assert(sizeof(T) <= sizeof(std::uint64_t));
  std::uint64_t word = 0;
  std::memcpy(&word, &value, sizeof value);
  digest = (digest ^ word) * 0x100000001b3u;
  digest ^= digest >> 29;  // FNV alone never brings high bits down
}

// Mixes a table of slots, all of which are pointers.
template <typename Table>
void mix_table(std::uint64_t& digest, const Table* table) {
  mix_word(digest, table);
  if (table == nullptr) return;
  static_assert(sizeof(Table) % sizeof(void*) == 0);
  void* slots[sizeof(Table) / sizeof(void*)];
  std::memcpy(slots, table, sizeof(Table));
  for (void* slot : slots) mix_word(digest, slot);
}

template <typename... Values>
void mix_all(std::uint64_t& digest, Values... values) {
  (mix_word(digest, values), ...);
}

}  // namespace

std::uint64_t digest_of_slots(PyTypeObject* type) {
  std::uint64_t digest = 0xcbf29ce484222325u;
  mix_all(digest, type->tp_basicsize, type->tp_itemsize, type->tp_vectorcall_offset, type->tp_weaklistoffset, type->tp_dictoffset,
          type->tp_doc, type->tp_methods, type->tp_members, type->tp_getset);
  mix_all(digest, type->tp_base, type->tp_bases, type->tp_mro);
  mix_all(digest, type->tp_dealloc, type->tp_getattr, type->tp_setattr, type->tp_repr, type->tp_hash, type->tp_call, type->tp_str,
          type->tp_getattro, type->tp_setattro, type->tp_traverse, type->tp_clear, type->tp_richcompare, type->tp_iter,
          type->tp_iternext, type->tp_descr_get, type->tp_descr_set, type->tp_init, type->tp_alloc, type->tp_new, type->tp_free,
          type->tp_is_gc, type->tp_del, type->tp_finalize, type->tp_vectorcall);
  mix_table(digest, type->tp_as_async);
  mix_table(digest, type->tp_as_number);
  mix_table(digest, type->tp_as_sequence);
  mix_table(digest, type->tp_as_mapping);
  mix_table(digest, type->tp_as_buffer);
  // Flags of static types, which all interpreters share, change under other GILs, and no Python code can change the rest.
  if (is_heap_type(type)) mix_all(digest, type->tp_flags & ~kVolatileFlags, type->tp_versions_used >= kNeverCached);
  return digest;
}

void clear_attribute_caches(PyTypeObject* type) {
  PyType_Modified(type);
  // CPython forgets this function only where the type has a version, and a type gets 1,000 of them at most.
  reinterpret_cast<PyHeapTypeObject*>(type)->_spec_cache.getitem = nullptr;
  if (type->tp_versions_used < kNeverCached) type->tp_versions_used = 0;
}

PyTypeObject* TypeSlots::find_changed() const {
  for (const auto& [type, digest] : digests_)
    if (digest_of_slots(type) != digest) return type;
  return nullptr;
}

std::size_t TypeSlots::bytes() const {
  return digests_.size() * (sizeof(*digests_.begin()) + sizeof(void*)) + digests_.bucket_count() * sizeof(void*);
}

}  // namespace walle::vm

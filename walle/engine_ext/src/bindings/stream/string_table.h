// Numbers of Python strings: each distinct string that is in use has one, from stream::kFirstId on.
#pragma once
#include <Python.h>

#include <vector>

#include "stream/condition.h"

namespace walle {

// Compares strings by the hash that each object caches, then by address, then by characters. Holds a reference to each string.
class StringTable {
 public:
  StringTable() = default;
  ~StringTable();
  StringTable(const StringTable&) = delete;
  StringTable& operator=(const StringTable&) = delete;

  // Returns the number of the string, which is an exact `str`; stream::kUnknown if it has none.
  stream::Id find(PyObject* text) const noexcept {
    const Py_hash_t hash = hash_of(text);
    const std::size_t mask = slots_.size() - 1;
    // Most ids of events are interned: they are the very objects that are here.
    for (std::size_t at = static_cast<std::size_t>(hash) & mask;; at = (at + 1) & mask) {
      const Slot& slot = slots_[at];
      if (slot.text == text || slot.text == nullptr) return slot.number;
      if (slot.hash == hash && same(slot.text, text)) return slot.number;
    }
  }
  // Returns the number of the string and counts one more use of it.
  stream::Id acquire(PyObject* text);
  // Ends one use. After the last one the number is free for another string.
  void release(stream::Id number) noexcept;
  // Returns a borrowed reference.
  PyObject* text(stream::Id number) const noexcept { return texts_[number]; }
  std::size_t uses(stream::Id number) const noexcept { return uses_[number]; }

 private:
  struct Slot {
    Py_hash_t hash = 0;
    PyObject* text = nullptr;
    stream::Id number = stream::kUnknown;
  };

  static Py_hash_t hash_of(PyObject* text) noexcept {
    const Py_hash_t cached = reinterpret_cast<PyASCIIObject*>(text)->hash;
    return cached != -1 ? cached : PyObject_Hash(text);  // hashing a str does not fail
  }
  static bool same(PyObject* a, PyObject* b) noexcept;
  std::size_t slot_of(PyObject* text, Py_hash_t hash) const noexcept;
  void put(const Slot& slot) noexcept;

  std::vector<Slot> slots_ = std::vector<Slot>(16);  // a power of two, at most a quarter full; linear probing
  std::vector<PyObject*> texts_ = std::vector<PyObject*>(stream::kFirstId);  // by number
  std::vector<std::size_t> uses_ = std::vector<std::size_t>(stream::kFirstId);
  std::vector<stream::Id> free_;
  std::size_t size_ = 0;
};

}  // namespace walle

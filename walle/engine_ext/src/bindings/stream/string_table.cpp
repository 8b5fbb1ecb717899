#include "bindings/stream/string_table.h"

#include <cstring>
#include <utility>

namespace walle {

bool StringTable::same(PyObject* a, PyObject* b) noexcept {
  const Py_ssize_t length = PyUnicode_GET_LENGTH(a);
  const int kind = PyUnicode_KIND(a);
  return length == PyUnicode_GET_LENGTH(b) && kind == static_cast<int>(PyUnicode_KIND(b)) &&
         std::memcmp(PyUnicode_DATA(a), PyUnicode_DATA(b), static_cast<std::size_t>(length * kind)) == 0;
}

StringTable::~StringTable() {
  for (PyObject* text : texts_) Py_XDECREF(text);
}

// Returns the slot of the string, or the empty one where it belongs.
std::size_t StringTable::slot_of(PyObject* text, Py_hash_t hash) const noexcept {
  const std::size_t mask = slots_.size() - 1;
  std::size_t at = static_cast<std::size_t>(hash) & mask;
  for (; slots_[at].text != nullptr; at = (at + 1) & mask)
    if (slots_[at].hash == hash && (slots_[at].text == text || same(slots_[at].text, text))) break;
  return at;
}

void StringTable::put(const Slot& slot) noexcept { slots_[slot_of(slot.text, slot.hash)] = slot; }

stream::Id StringTable::acquire(PyObject* text) {
  if (const stream::Id found = find(text); found != stream::kUnknown) {
    ++uses_[found];
    return found;
  }
  if (4 * (size_ + 1) > slots_.size()) {
    const std::vector<Slot> old = std::exchange(slots_, std::vector<Slot>(2 * slots_.size()));
    for (const Slot& slot : old)
      if (slot.text != nullptr) put(slot);
  }
  auto number = static_cast<stream::Id>(texts_.size());
  if (free_.empty()) {
    free_.reserve(texts_.size() + 1);  // `release` then never allocates
    texts_.push_back(nullptr);
    uses_.push_back(0);
  } else {
    number = free_.back();
    free_.pop_back();
  }
  texts_[number] = Py_NewRef(text);
  uses_[number] = 1;
  put({hash_of(text), text, number});
  ++size_;
  return number;
}

void StringTable::release(stream::Id number) noexcept {
  if (--uses_[number] != 0) return;
  PyObject* text = std::exchange(texts_[number], nullptr);
  const std::size_t mask = slots_.size() - 1;
  std::size_t hole = slot_of(text, hash_of(text));
  // Later slots of the same run move up, so that no search stops at the hole before it reaches them.
  for (std::size_t at = (hole + 1) & mask; slots_[at].text != nullptr; at = (at + 1) & mask) {
    const std::size_t home = static_cast<std::size_t>(slots_[at].hash) & mask;
    if (((at - home) & mask) < ((at - hole) & mask)) continue;
    slots_[hole] = slots_[at];
    hole = at;
  }
  slots_[hole] = {};
  --size_;
  free_.push_back(number);
  Py_DECREF(text);
}

}  // namespace walle

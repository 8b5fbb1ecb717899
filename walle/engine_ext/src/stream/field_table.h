// Fields of contents that are read together: one pass over the keys of an event finds all of them.
#pragma once
#include "stream/event_batch.h"

namespace walle::stream {

class FieldTable {
 public:
  // Returns the number of the field, which is one of the contents; equal paths share one.
  std::size_t add(const FieldPath& path);
  std::size_t size() const noexcept { return fields_.size(); }
  // Writes the values that EventBatch::field returns to values[0], values[stride] and so on, in the order of the numbers.
  void read(const EventBatch& events, std::size_t row, Value* values, std::size_t stride) const;

 private:
  static constexpr std::size_t kMaxAtOnce = 64;  // fields; those after them are read one by one
  struct Field {
    FieldPath path;
    std::uint64_t word;  // the first 8 bytes of its first key
    std::size_t length;  // length of the first key
    std::string_view key() const noexcept { return path.keys().front(); }
  };
  void read_contents(const EventBatch& events, std::size_t row, Value* values, std::size_t stride) const noexcept;

  Vector<Field> fields_;
  std::uint64_t marks_ = 0;  // bits of the first keys, by their words: most other keys of an event have another one
};

}  // namespace walle::stream

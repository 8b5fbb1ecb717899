#include "stream/field_table.h"

#include <algorithm>
#include <bit>

namespace walle::stream {

namespace {

// Returns the first 8 bytes of the key, zeros behind its end. `readable` bytes may be read.
std::uint64_t first_word(std::string_view key, std::size_t readable) noexcept {
  std::uint64_t word = 0;
  if (key.size() >= 8 || (readable >= 8 && std::endian::native == std::endian::little)) {
    std::memcpy(&word, key.data(), 8);
    return key.size() >= 8 ? word : word & ((std::uint64_t{1} << 8 * key.size()) - 1);
  }
  std::memcpy(&word, key.data(), key.size());
  return word;
}

std::uint64_t mark_of(std::uint64_t word) noexcept { return std::uint64_t{1} << (word * 0x9e3779b97f4a7c15 >> 58); }

// Reads the value at the reader's place, or the one that the keys after the first lead to.
Value value_at(PackedReader reader, const Vector<Text>& keys) noexcept {
  Value found;
  if (!reader.read(found)) return {};
  for (std::size_t i = 1; i < keys.size(); ++i)
    if (found.kind != Kind::map || !reader.find(keys[i], found.length) || !reader.read(found)) return {};
  return found.kind == Kind::extension ? Value{} : found;
}

}  // namespace

std::size_t FieldTable::add(const FieldPath& path) {
  for (std::size_t i = 0; i < fields_.size(); ++i)
    if (fields_[i].path.keys() == path.keys()) return i;
  const std::string_view key = path.keys().front();
  fields_.push_back({path, first_word(key, 0), key.size()});
  marks_ |= mark_of(fields_.back().word);
  return fields_.size() - 1;
}

void FieldTable::read(const EventBatch& events, std::size_t row, Value* values, std::size_t stride) const {
  for (std::size_t i = 0; i < fields_.size(); ++i) values[i * stride] = {};
  read_contents(events, row, values, stride);
  for (std::size_t i = kMaxAtOnce; i < fields_.size(); ++i) values[i * stride] = events.field(row, fields_[i].path);
}

void FieldTable::read_contents(const EventBatch& events, std::size_t row, Value* values, std::size_t stride) const noexcept {
  const std::size_t count = std::min(fields_.size(), kMaxAtOnce);
  PackedReader reader(events.data(), events.data_size(), events.contents(row).at);
  Value contents;
  reader.read(contents);
  // Bits of the fields whose key is not found yet; of equal keys in damaged bytes the first one counts.
  std::uint64_t sought = count == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << count) - 1;
  std::uint32_t pairs = contents.length;
  for (std::string_view key; sought != 0 && pairs != 0 && reader.read_key(key); --pairs) {
    if (const std::uint64_t word = first_word(key, key.size() + reader.left()); (marks_ & mark_of(word)) != 0) {
      const std::uint64_t before = sought;
      for (std::size_t i = 0; i < count; ++i) {
        const Field& field = fields_[i];
        if (field.word != word || field.length != key.size() || (before >> i & 1) == 0) continue;
        if (key.size() > 8 && std::memcmp(field.key().data(), key.data(), key.size()) != 0) continue;
        values[i * stride] = value_at(reader, fields_[i].path.keys());
        sought &= ~(std::uint64_t{1} << i);
      }
    }
    if (!reader.skip()) return;
  }
}

}  // namespace walle::stream

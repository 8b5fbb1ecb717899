#include "stream/packed_writer.h"

#include <algorithm>

#include "stream/event_batch.h"
#include "stream/utf8.h"

namespace walle::stream {

namespace {

std::string_view text_at(const Value& value, const std::uint8_t* data) noexcept {
  return {reinterpret_cast<const char*>(data) + value.place, value.length};
}

}  // namespace

void PackedWriter::enlarge(std::size_t bytes) {
  if (bytes > kMaxEncodedBytes || size_ > kMaxEncodedBytes - bytes)
    throw EventFault{"plan", "has a result of more than " + std::to_string(kMaxEncodedBytes) + " bytes"};
  out_.resize(std::max(2 * out_.size(), size_ + bytes));
}

void PackedWriter::text(std::string_view text) {
  if (!is_utf8(text)) throw EventFault{"plan", "has a result with a text that is not UTF-8"};
  std::uint8_t* to = room(kMaxHeadBytes + text.size());
  to = write_text_head(to, static_cast<std::uint32_t>(text.size()));
  if (!text.empty()) std::memcpy(to, text.data(), text.size());  // an empty view may have no address
  advance(to + text.size());
}

void PackedWriter::binary(std::string_view bytes) {
  std::uint8_t* to = room(kMaxHeadBytes + bytes.size());
  to = write_binary_head(to, static_cast<std::uint32_t>(bytes.size()));
  std::memcpy(to, bytes.data(), bytes.size());
  advance(to + bytes.size());
}

void PackedWriter::open(std::size_t most_items) {
  if (++level_ > kMaxDepth) throw EventFault{"plan", "has a result that is nested deeper than 100 levels"};
  depth_ = std::max(depth_, level_);
  grow(head_bytes(most_items));
}

void PackedWriter::close(Mark mark, std::size_t most_items, std::size_t items, bool is_map) {
  const std::size_t reserved = head_bytes(most_items), used = head_bytes(items);
  std::uint8_t* head = out_.data() + mark.size;
  if (used < reserved) {
    std::memmove(head + used, head + reserved, size_ - mark.size - reserved);
    size_ -= reserved - used;
  }
  const auto count = static_cast<std::uint32_t>(items);
  is_map ? write_map_head(head, count) : write_list_head(head, count);
  level_ = mark.level;
}

void PackedWriter::copy(PackedReader& reader, const std::uint8_t* data) {
  Value value;
  if (!reader.read(value)) throw EventFault{"plan", "has a result from bytes that are damaged"};
  switch (value.kind) {
    case Kind::boolean: return boolean(value.integer != 0);
    case Kind::integer: return integer(value.integer);
    case Kind::large: return large(value.large);
    case Kind::real: return real(value.real);
    case Kind::text: return text(text_at(value, data));
    case Kind::binary: return binary(text_at(value, data));
    case Kind::list:
    case Kind::map: break;
    default: return nil();
  }
  const bool is_map = value.kind == Kind::map;
  if (value.length > reader.left()) throw EventFault{"plan", "has a result from bytes that are damaged"};
  const Mark start = mark();
  open(value.length);
  for (std::uint32_t i = 0; i < value.length; ++i) {
    if (is_map) {
      std::string_view key;
      if (!reader.read_key(key)) throw EventFault{"plan", "has a result from bytes that are damaged"};
      text(key);
    }
    copy(reader, data);
  }
  close(start, value.length, value.length, is_map);
}

void PackedWriter::copy(const Value& value, const std::uint8_t* data, std::size_t size) {
  switch (value.kind) {
    case Kind::integer: return integer(value.integer);
    case Kind::real: return real(value.real);
    case Kind::text: return text(text_at(value, data));
    case Kind::boolean: return boolean(value.integer != 0);
    case Kind::large: return large(value.large);
    case Kind::binary: return binary(text_at(value, data));
    case Kind::list:
    case Kind::map: {
      PackedReader reader(data, size, value.place);
      return copy(reader, data);
    }
    default: return nil();
  }
}

}  // namespace walle::stream

// Writer of plain data in MessagePack, as walle.base.plain encodes it, whose containers learn their number of items at their end.
#pragma once
#include <string_view>

#include "stream/packed.h"

namespace walle::stream {

inline constexpr std::size_t kMaxEncodedBytes = std::size_t{1} << 20;  // MAX_FEATURE_BYTES of walle/pipeline/features/store.py

// All that it writes is plain data: texts are checked to be UTF-8, keys to be texts, depth and size to be within bounds. A value
// that is not throws EventFault.
class PackedWriter {
 public:
  // A position to which `undo` returns, or at which a container begins.
  struct Mark {
    std::size_t size;
    int level;
  };

  PackedWriter() { out_.resize(kFirstBytes); }

  void nil() { *grow(1) = 0xc0; }
  void boolean(bool truth) { *grow(1) = truth ? 0xc3 : 0xc2; }
  void integer(std::int64_t number) { advance(write_integer(room(kMaxHeadBytes), number)); }
  void large(std::uint64_t number) { advance(write_large(room(kMaxHeadBytes), number)); }
  void real(double number) { advance(write_real(room(kMaxHeadBytes), number)); }
  void text(std::string_view text);
  void binary(std::string_view bytes);
  // Writes bytes that this class wrote before: a value without containers.
  void written(std::string_view bytes) { std::memcpy(grow(bytes.size()), bytes.data(), bytes.size()); }
  // Copies a value with all that is in it. An extension, which columns do not hold, becomes nil.
  void copy(PackedReader& reader, const std::uint8_t* data);
  void copy(const Value& value, const std::uint8_t* data, std::size_t size);

  Mark mark() const noexcept { return {size_, level_}; }
  // Removes all that was written after the mark.
  void undo(Mark mark) noexcept {
    size_ = mark.size;
    level_ = mark.level;
  }
  // Begins a container of at most this many items, of a map pairs. `close_*` takes the mark of before.
  void open(std::size_t most_items);
  void close_map(Mark mark, std::size_t most_items, std::size_t pairs) { close(mark, most_items, pairs, true); }
  void close_list(Mark mark, std::size_t most_items, std::size_t items) { close(mark, most_items, items, false); }

  std::string_view bytes() const noexcept { return {reinterpret_cast<const char*>(out_.data()), size_}; }
  // Returns the levels of containers in containers, or more where some were undone.
  int depth() const noexcept { return depth_; }

 private:
  static constexpr std::size_t kFirstBytes = 2048;

  // Returns room for this many bytes behind the written ones.
  std::uint8_t* room(std::size_t bytes) {
    if (out_.size() - size_ < bytes) enlarge(bytes);
    return out_.data() + size_;
  }
  std::uint8_t* grow(std::size_t bytes) {
    std::uint8_t* to = room(bytes);
    size_ += bytes;
    return to;
  }
  void advance(const std::uint8_t* end) noexcept { size_ = static_cast<std::size_t>(end - out_.data()); }
  void enlarge(std::size_t bytes);
  void close(Mark mark, std::size_t most_items, std::size_t items, bool is_map);
  static std::size_t head_bytes(std::size_t items) noexcept { return items < 16 ? 1 : items <= 0xffff ? 3 : 5; }

  Vector<std::uint8_t> out_;
  std::size_t size_ = 0;
  int level_ = 0, depth_ = 0;
};

}  // namespace walle::stream

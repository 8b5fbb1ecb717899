// Columns of a batch of events (§5.1): numbered event and page ids, times, and the place of each event's contents in its bytes.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "stream/packed.h"

namespace walle::stream {

inline constexpr std::size_t kMaxIdCharacters = 1024;              // walle.pipeline.events.event.MAX_EVENT_ID_CHARS
inline constexpr std::int64_t kMaxTimeMs = std::int64_t{1} << 53;  // MAX_TS_MS
inline constexpr std::size_t kMaxBatchBytes = std::size_t{1} << 30;

// A fault in an event, or in what is asked of it: the field, and what is wrong with it.
struct EventFault {
  std::string field, what;
};

// A field of an event: `event_id`, `page_id`, `ts_ms`, `contents`, or a path of keys in the contents, joined by dots, such as
// `item.price`. `contents.ts_ms` is the key `ts_ms` of the contents.
class FieldPath {
 public:
  enum class Source : std::uint8_t { event_id, page_id, time, contents };
  // Throws EventFault if the text is not a path.
  explicit FieldPath(std::string_view text);
  Source source() const noexcept { return source_; }
  const Vector<Text>& keys() const noexcept { return keys_; }

 private:
  Source source_ = Source::contents;
  Vector<Text> keys_;
};

class EventBatch {
 public:
  struct Span {
    std::uint32_t at = 0, length = 0;
  };

  // Keeps `owner` while it exists; `data` are its bytes.
  EventBatch(std::shared_ptr<const void> owner, const std::uint8_t* data, std::size_t size) noexcept
      : owner_(std::move(owner)), data_(data), size_(size) {}

  // Makes room for about this many events.
  void reserve(std::size_t events);
  // Reads a list of events, each a list of its four fields. Throws EventFault where one is wrong or the bytes are damaged.
  void read_all();
  // Adds one event of checked fields: places of the ids' text, of the contents' head, and of the whole event.
  void append(Span event_id, Span page_id, std::int64_t ts_ms, Span contents, std::uint32_t row_at);

  std::size_t size() const noexcept { return times_.size(); }
  std::uint32_t event_id(std::size_t row) const noexcept { return event_ids_[row]; }
  std::uint32_t page_id(std::size_t row) const noexcept { return page_ids_[row]; }
  std::int64_t ts_ms(std::size_t row) const noexcept { return times_[row]; }
  const std::int64_t* times() const noexcept { return times_.data(); }
  const std::uint32_t* event_ids() const noexcept { return event_ids_.data(); }
  const std::uint32_t* page_ids() const noexcept { return page_ids_.data(); }
  Span contents(std::size_t row) const noexcept { return contents_[row]; }
  // The bytes of a whole event.
  std::string_view row(std::size_t row) const noexcept {
    return text({rows_[row], contents_[row].at + contents_[row].length - rows_[row]});
  }
  // Ids of events and of pages share their numbers, from 0 on.
  std::size_t id_count() const noexcept { return ids_.size(); }
  std::string_view id(std::uint32_t number) const noexcept { return text(ids_[number]); }
  Value id_value(std::uint32_t number) const noexcept;
  std::optional<std::uint32_t> find_id(std::string_view text) const noexcept;

  // Returns the value of the field; `missing` where the event does not have it, and for an extension, which columns do not hold.
  Value field(std::size_t row, const FieldPath& path) const;
  // Returns the field of each row. A large share of the batch is read once and kept.
  Vector<Value> fields(const Vector<std::uint32_t>& rows, const FieldPath& path, std::string_view name) const;

  std::string_view text(Span span) const noexcept { return {reinterpret_cast<const char*>(data_) + span.at, span.length}; }
  std::string_view text(const Value& value) const noexcept {
    return {reinterpret_cast<const char*>(data_) + value.place, value.length};
  }
  const std::uint8_t* data() const noexcept { return data_; }
  std::size_t data_size() const noexcept { return size_; }

 private:
  struct Column {
    std::string name;
    Vector<Value> values;
  };
  static constexpr std::size_t kMaxColumns = 32;  // columns that are kept

  std::uint32_t number_of(Span id);
  std::size_t slot_of(std::string_view text) const noexcept;
  std::shared_ptr<const void> owner_;
  const std::uint8_t* data_;
  std::size_t size_;
  Vector<std::uint32_t> event_ids_, page_ids_, rows_;
  Vector<std::int64_t> times_;
  Vector<Span> contents_;
  Vector<Span> ids_;
  Vector<std::uint32_t> slots_;  // open addressing: 1 + number of an id; a power of two, at most half full
  mutable Vector<Column> columns_;
};

// Events of a batch by their rows, in the order of the view.
struct EventRows {
  std::shared_ptr<const EventBatch> batch;
  Vector<std::uint32_t> rows;
};

}  // namespace walle::stream

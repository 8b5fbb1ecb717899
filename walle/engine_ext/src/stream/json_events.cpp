#include "stream/json_events.h"

#include "stream/json_parser.h"

namespace walle::stream {

namespace {

constexpr std::string_view kNames[] = {"event_id", "page_id", "ts_ms", "contents"};
constexpr std::string_view kQuotedNames[] = {"\"event_id\"", "\"page_id\"", "\"ts_ms\"", "\"contents\""};
constexpr std::size_t kLikelyEventBytes = 512;  // bytes of JSON of an event; room for more events is made when they come
using Span = EventBatch::Span;

// Reads one event after the other; keeps the output where its columns are.
class EventParser {
 public:
  EventParser(std::string_view json, std::uint8_t* out, EventBatch& batch) : parser_(json, out), start_(out), batch_(batch) {}

  void read_all() {
    parser_.skip_space();
    const bool is_list = parser_.take('[');
    parser_.skip_space();
    if (is_list && parser_.take(']')) return finish();
    while (!parser_.at_end()) {
      read_event();
      parser_.skip_space();
      if (!is_list) continue;
      if (parser_.take(']')) return finish();
      if (!parser_.take(',')) parser_.refuse_here();
      parser_.skip_space();
      if (parser_.at_end()) parser_.refuse_here();
    }
    if (is_list) parser_.refuse_here();
  }
  std::size_t row() const noexcept { return batch_.size(); }
  std::size_t written() noexcept { return static_cast<std::size_t>(parser_.out() - start_); }

 private:
  void finish() {
    parser_.skip_space();
    if (!parser_.at_end()) parser_.refuse("more follows the list of events");
  }

  void read_event() {
    if (parser_.peek() != '{') throw EventFault{"event", "must be an object"};
    parser_.take('{');
    std::uint8_t* row = parser_.out();
    *row = 0x94;  // a list of four
    parser_.set_out(row + 1);
    Span fields[4];
    bool is_in_order = true;  // the fields' values are the row, if they come in this order
    int count = 0;
    parser_.skip_space();
    if (!parser_.take('}')) {
      for (;;) {
        std::uint8_t* key = parser_.out();
        const int field = read_name(count);
        parser_.set_out(key);
        parser_.skip_space();
        if (!parser_.take(':')) parser_.refuse_here();
        if (field == 3)
          parser_.contents(kMaxContentsDepth);
        else
          parser_.value(kMaxDepth - 1);
        if (field < 0) {
          parser_.set_out(key);  // an event has no such field
        } else {
          is_in_order = is_in_order && field == count;
          ++count;
          fields[field] = {static_cast<std::uint32_t>(key - start_), static_cast<std::uint32_t>(parser_.out() - key)};
        }
        parser_.skip_space();
        if (parser_.take('}')) break;
        if (!parser_.take(',')) parser_.refuse_here();
        parser_.skip_space();
      }
    }
    for (int i = 0; i < 4; ++i)
      if (fields[i].length == 0) throw EventFault{std::string(kNames[i]), "is missing"};
    if (!is_in_order || count != 4) put_in_order(row, fields);
    add(row, fields);
  }

  // Reads the name of a field; -1 where an event has no such field. Mostly it is the field `expected`.
  int read_name(int expected) {
    if (expected < 4 && parser_.take(kQuotedNames[expected])) return expected;
    const std::uint8_t* key = parser_.out();
    parser_.text();
    PackedReader reader(start_, written(), static_cast<std::size_t>(key - start_));
    Value name;
    reader.read(name);
    const std::string_view text(reinterpret_cast<const char*>(start_) + name.place, name.length);
    for (int i = 0; i < 4; ++i)
      if (text == kNames[i]) return i;
    return -1;
  }

  void put_in_order(std::uint8_t* row, Span (&fields)[4]) {
    Vector<std::uint8_t> ordered;
    const std::uint32_t contents_at = fields[3].at;
    for (Span& field : fields) {
      const auto at = static_cast<std::uint32_t>(row + 1 - start_ + static_cast<std::ptrdiff_t>(ordered.size()));
      ordered.insert(ordered.end(), static_cast<const std::uint8_t*>(start_ + field.at),
                     static_cast<const std::uint8_t*>(start_ + field.at + field.length));
      field.at = at;
    }
    if (!ordered.empty()) std::memcpy(row + 1, ordered.data(), ordered.size());
    parser_.set_out(row + 1 + ordered.size());
    parser_.contents_moved(static_cast<std::ptrdiff_t>(fields[3].at) - static_cast<std::ptrdiff_t>(contents_at));
  }

  void add(const std::uint8_t* row, const Span (&fields)[4]) {
    const auto read = [&](int field) {
      PackedReader reader(start_, written(), fields[field].at);
      Value value;
      reader.read(value);
      return value;
    };
    Span ids[2];
    for (int i = 0; i < 2; ++i) {
      const Value id = read(i);
      if (id.kind != Kind::text) throw EventFault{std::string(kNames[i]), "must be str"};
      ids[i] = {static_cast<std::uint32_t>(id.place), id.length};
      if (id.length > kMaxIdCharacters &&
          count_characters({reinterpret_cast<const char*>(start_) + id.place, id.length}) > kMaxIdCharacters)
        throw EventFault{std::string(kNames[i]), "is longer than 1024 characters"};
    }
    if (ids[0].length == 0) throw EventFault{"event_id", "is empty"};
    const Value ts_ms = read(2);
    if (ts_ms.kind != Kind::integer && ts_ms.kind != Kind::large) throw EventFault{"ts_ms", "must be int"};
    if (ts_ms.kind == Kind::large || ts_ms.integer < 0 || ts_ms.integer > kMaxTimeMs)
      throw EventFault{"ts_ms", "is not milliseconds since the epoch"};
    if (const std::uint8_t head = start_[fields[3].at]; (head & 0xf0) != 0x80 && head != 0xde && head != 0xdf)
      throw EventFault{"contents", "must be an object"};
    const auto size = static_cast<std::size_t>(parser_.out() - row);
    if (size > kMaxEventBytes)
      throw EventFault{"event", std::to_string(size) + " bytes, more than " + std::to_string(kMaxEventBytes)};
    batch_.append(ids[0], ids[1], ts_ms.integer, fields[3], static_cast<std::uint32_t>(row - start_));
  }

  JsonParser parser_;
  std::uint8_t* start_;
  EventBatch& batch_;
};

}  // namespace

std::shared_ptr<const EventBatch> read_json_events(std::string_view json) {
  if (json.size() > kMaxBatchBytes / 4) throw EventFault{"events", "are more than 256 MiB of JSON in one batch"};
  auto bytes = std::make_shared<Vector<std::uint8_t>>(packed_bound(json.size()));
  auto batch = std::make_shared<EventBatch>(bytes, bytes->data(), bytes->size());
  batch->reserve(json.size() / kLikelyEventBytes + 1);
  EventParser parser(json, bytes->data(), *batch);
  try {
    parser.read_all();
  } catch (const JsonFault& fault) {
    throw EventFault{"event " + std::to_string(parser.row()), "byte " + std::to_string(fault.at) + " of the JSON: " + fault.what};
  } catch (const EventFault& fault) {
    throw EventFault{fault.field, "of event " + std::to_string(parser.row()) + " " + fault.what};
  }
  return batch;
}

}  // namespace walle::stream

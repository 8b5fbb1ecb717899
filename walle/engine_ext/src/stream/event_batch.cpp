#include "stream/event_batch.h"

#include <algorithm>

namespace walle::stream {

namespace {

constexpr std::size_t kMaxPathCharacters = 256;  // walle.protocol.ContentsTest.MAX_FIELD_CHARS
constexpr std::string_view kDamaged = "these bytes are not events as walle encodes them";

[[noreturn]] void refuse(std::size_t row, std::string_view field, std::string_view what) {
  throw EventFault{std::string(field), "of event " + std::to_string(row) + " " + std::string(what)};
}

std::uint64_t hash_of(std::string_view text) noexcept {
  std::uint64_t hash = text.size() * 0x9e3779b97f4a7c15;
  std::size_t at = 0;
  for (; at + 8 <= text.size(); at += 8) {
    std::uint64_t part = 0;
    std::memcpy(&part, text.data() + at, 8);
    hash = (hash ^ part) * 0xff51afd7ed558ccd;
    hash ^= hash >> 32;
  }
  std::uint64_t part = 0;
  if (at < text.size()) std::memcpy(&part, text.data() + at, text.size() - at);
  hash = (hash ^ part) * 0xc4ceb9fe1a85ec53;
  return hash ^ hash >> 29;
}

}  // namespace

FieldPath::FieldPath(std::string_view text) {
  if (text == "event_id") source_ = Source::event_id;
  if (text == "page_id") source_ = Source::page_id;
  if (text == "ts_ms") source_ = Source::time;
  if (source_ != Source::contents || text == "contents") return;
  if (text.starts_with("contents.")) text.remove_prefix(9);
  if (text.empty() || count_characters(text) > kMaxPathCharacters)
    throw EventFault{"field", "must be a field of an event, such as item.price, of at most 256 characters"};
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('.', begin), text.size());
    if (end == begin) throw EventFault{"field", "'" + std::string(text) + "' has an empty key; write item.price"};
    keys_.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
}

void EventBatch::reserve(std::size_t events) {
  for (auto* column : {&event_ids_, &page_ids_, &rows_}) column->reserve(events);
  times_.reserve(events);
  contents_.reserve(events);
}

void EventBatch::read_all() {
  if (size_ > kMaxBatchBytes) throw EventFault{"events", "are more than 1 GiB in one batch"};
  PackedReader reader(data_, size_);
  Value list;
  if (!reader.read(list) || list.kind != Kind::list) throw EventFault{"events", std::string(kDamaged)};
  reserve(std::min<std::size_t>(list.length, size_ / 8));
  for (std::uint32_t row = 0; row < list.length; ++row) {
    const auto row_at = static_cast<std::uint32_t>(reader.at());
    Value fields, event_id, page_id, ts_ms;
    if (!reader.read(fields)) throw EventFault{"events", std::string(kDamaged)};
    if (fields.kind != Kind::list || fields.length != 4) refuse(row, "event", "is not a list of its four fields");
    if (!reader.read(event_id) || event_id.kind != Kind::text) refuse(row, "event_id", "must be str");
    if (event_id.length == 0) refuse(row, "event_id", "is empty");
    if (!reader.read(page_id) || page_id.kind != Kind::text) refuse(row, "page_id", "must be str");
    for (const auto& [name, id] : {std::pair{"event_id", event_id}, std::pair{"page_id", page_id}})
      if (id.length > kMaxIdCharacters && count_characters(text(id)) > kMaxIdCharacters)
        refuse(row, name, "is longer than 1024 characters");
    if (!reader.read(ts_ms) || ts_ms.kind != Kind::integer) refuse(row, "ts_ms", "must be int");
    if (ts_ms.integer < 0 || ts_ms.integer > kMaxTimeMs) refuse(row, "ts_ms", "is not milliseconds since the epoch");
    const auto contents_at = static_cast<std::uint32_t>(reader.at());
    Value contents;
    PackedReader head = reader;
    if (!head.read(contents) || contents.kind != Kind::map) refuse(row, "contents", "must be an object");
    if (!reader.skip()) refuse(row, "contents", "are damaged, or nested deeper than 100 levels");
    append({static_cast<std::uint32_t>(event_id.place), event_id.length},
           {static_cast<std::uint32_t>(page_id.place), page_id.length}, ts_ms.integer,
           {contents_at, static_cast<std::uint32_t>(reader.at() - contents_at)}, row_at);
  }
  if (reader.left() != 0) throw EventFault{"events", std::string(kDamaged) + ": more bytes follow the last event"};
}

void EventBatch::append(Span event_id, Span page_id, std::int64_t ts_ms, Span contents, std::uint32_t row_at) {
  const std::size_t before = size();
  const auto same = [&](const Vector<std::uint32_t>& column, Span id) {
    return before != 0 && text(ids_[column[before - 1]]) == text(id);
  };
  event_ids_.push_back(same(event_ids_, event_id) ? event_ids_[before - 1] : number_of(event_id));
  page_ids_.push_back(same(page_ids_, page_id) ? page_ids_[before - 1] : number_of(page_id));
  rows_.push_back(row_at);
  contents_.push_back(contents);
  times_.push_back(ts_ms);
}

std::size_t EventBatch::slot_of(std::string_view sought) const noexcept {
  const std::size_t mask = slots_.size() - 1;
  std::size_t at = hash_of(sought) & mask;
  while (slots_[at] != 0 && text(ids_[slots_[at] - 1]) != sought) at = (at + 1) & mask;
  return at;
}

std::uint32_t EventBatch::number_of(Span id) {
  if (2 * (ids_.size() + 1) > slots_.size()) {
    slots_.assign(std::max<std::size_t>(16, 2 * slots_.size()), 0);
    for (std::uint32_t i = 0; i < ids_.size(); ++i) slots_[slot_of(text(ids_[i]))] = i + 1;
  }
  std::uint32_t& slot = slots_[slot_of(text(id))];
  if (slot == 0) {
    ids_.push_back(id);
    slot = static_cast<std::uint32_t>(ids_.size());
  }
  return slot - 1;
}

std::optional<std::uint32_t> EventBatch::find_id(std::string_view text) const noexcept {
  if (slots_.empty()) return std::nullopt;
  const std::uint32_t slot = slots_[slot_of(text)];
  return slot == 0 ? std::nullopt : std::optional(slot - 1);
}

Value EventBatch::id_value(std::uint32_t number) const noexcept {
  Value value;
  value.kind = Kind::text;
  value.length = ids_[number].length;
  value.place = ids_[number].at;
  return value;
}

Value EventBatch::field(std::size_t row, const FieldPath& path) const {
  switch (path.source()) {
    case FieldPath::Source::event_id: return id_value(event_ids_[row]);
    case FieldPath::Source::page_id: return id_value(page_ids_[row]);
    case FieldPath::Source::time: return integer_value(times_[row]);
    case FieldPath::Source::contents: break;
  }
  PackedReader reader(data_, size_, contents_[row].at);
  Value found;
  reader.read(found);
  for (const Text& key : path.keys())
    if (found.kind != Kind::map || !reader.find(key, found.length) || !reader.read(found)) return {};
  return found.kind == Kind::extension ? Value{} : found;
}

Vector<Value> EventBatch::fields(const Vector<std::uint32_t>& rows, const FieldPath& path, std::string_view name) const {
  Vector<Value> values(rows.size());
  const bool is_contents = path.source() == FieldPath::Source::contents;
  const Column* column = nullptr;
  for (const Column& one : columns_)
    if (is_contents && one.name == name) column = &one;
  if (column == nullptr && is_contents && rows.size() >= 64 && 2 * rows.size() >= size() && columns_.size() < kMaxColumns) {
    Column made{std::string(name), Vector<Value>(size())};
    for (std::size_t row = 0; row < size(); ++row) made.values[row] = field(row, path);
    columns_.push_back(std::move(made));
    column = &columns_.back();
  }
  for (std::size_t i = 0; i < rows.size(); ++i) values[i] = column == nullptr ? field(rows[i], path) : column->values[rows[i]];
  return values;
}

}  // namespace walle::stream

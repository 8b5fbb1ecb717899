#include "bindings/stream/plan_columns.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>

namespace walle::columns {

PlanColumns::PlanColumns(const View& view, const Selection& selection, std::span<const std::uint32_t> rows,
                         stream::Scratch& scratch)
    : view_(view),
      selection_(selection),
      rows_(rows),
      scratch_(scratch),
      first_ms_(rows.empty() ? 0 : view.batch->events->ts_ms(view.rows[0])),
      fields_(scratch.take<Value>(selection.fields.size() * rows.size())),
      columns_(scratch.take<Column>(selection.readings.size())) {
  if (fields_.empty()) return;
  for (std::size_t i = 0; i < rows.size(); ++i) selection.fields.read(events(), rows[i], fields_.data() + i, rows.size());
}

std::span<const Value> PlanColumns::values(std::int32_t number) {
  Column& column = columns_[static_cast<std::size_t>(number)];
  if (column.is_read) return column.values;
  column.is_read = true;
  const Reading& read = reading(number);
  const std::size_t count = rows_.size();
  if (read.field >= 0) {
    const std::span<Value> field = fields_.subspan(static_cast<std::size_t>(read.field) * count, count);
    column.values = field;
    if (read.is_number) {  // a copy: other readings of the field take more than numbers
      column.values = scratch_.take<Value>(count);
      std::copy(field.begin(), field.end(), column.values.begin());
    }
  } else if (read.source == Reading::Source::gap) {
    column.values = scratch_.take<Value>(count == 0 ? 0 : count - 1);
    for (std::size_t i = 1; i < count; ++i)
      column.values[i - 1] =
          stream::integer_value(std::max<std::int64_t>(0, events().ts_ms(rows_[i]) - events().ts_ms(rows_[i - 1])));
  } else {
    column.values = scratch_.take<Value>(count);
    for (std::size_t i = 0; i < count; ++i)
      column.values[i] =
          read.source == Reading::Source::since ? stream::integer_value(since_ms(i)) : events().field(rows_[i], read.path);
  }
  if (!read.is_number) return column.values;
  for (Value& value : column.values) {
    const bool is_kept = is_within(value, read.limit);
    Value number_of_value;
    if (is_kept || read.has_fallback) {
      number_of_value.kind = Kind::real;
      number_of_value.real = is_kept ? real_of(value) : read.fallback;
    }
    value = number_of_value;
  }
  return column.values;
}

std::span<const std::string_view> PlanColumns::texts(std::int32_t number) {
  Column& column = columns_[static_cast<std::size_t>(number)];
  if (column.has_texts) return column.texts;
  const std::span<const Value> found = values(number);
  const Py_ssize_t max_chars = reading(number).max_chars;
  column.texts = scratch_.take<std::string_view>(found.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    char digits[kMaxDigits];
    std::string_view& text = column.texts[i] = text_of(events(), found[i], max_chars, stream::kMaxTimeMs, digits);
    if (text.data() != digits) continue;
    const std::span<char> kept = scratch_.take<char>(text.size());
    std::copy(text.begin(), text.end(), kept.begin());
    text = {kept.data(), kept.size()};
  }
  column.has_texts = true;
  return column.texts;
}

std::span<const PlanColumns::Distinct> PlanColumns::distinct(std::int32_t number) {
  Column& column = columns_[static_cast<std::size_t>(number)];
  if (column.has_distinct) return column.distinct;
  const std::span<const std::string_view> found = texts(number);
  constexpr std::size_t kFew = 64;  // texts that a search without a table finds as fast
  // Open addressing: 1 + index in `distinct`; a power of two, at most half full.
  const std::span<std::uint32_t> slots = scratch_.take<std::uint32_t>(found.size() > kFew ? std::bit_ceil(2 * found.size()) : 0);
  std::fill(slots.begin(), slots.end(), 0);
  const std::span<Distinct> distinct = scratch_.take<Distinct>(found.size());
  std::size_t count = 0;
  const auto place_of = [&](std::string_view text) -> Distinct* {
    if (slots.empty()) {
      for (Distinct& one : distinct.first(count))
        if (found[one.first].size() == text.size() && std::memcmp(found[one.first].data(), text.data(), text.size()) == 0)
          return &one;
      return nullptr;
    }
    std::size_t at = std::hash<std::string_view>{}(text) & (slots.size() - 1);
    for (; slots[at] != 0; at = (at + 1) & (slots.size() - 1))
      if (found[distinct[slots[at] - 1].first] == text) return &distinct[slots[at] - 1];
    slots[at] = static_cast<std::uint32_t>(count + 1);  // the caller adds this text next
    return nullptr;
  };
  for (std::uint32_t i = 0; i < found.size(); ++i) {
    if (found[i].empty()) continue;
    if (Distinct* known = place_of(found[i]); known != nullptr)
      ++known->count;
    else
      distinct[count++] = {i, 1};
  }
  column.distinct = distinct.first(count);
  column.has_distinct = true;
  return column.distinct;
}

}  // namespace walle::columns

#include "bindings/stream/plan_columns.h"

#include <algorithm>

namespace walle::columns {

PlanColumns::PlanColumns(const View& view, const Selection& selection, const Rows& rows)
    : view_(view), selection_(selection), rows_(rows), first_ms_(view.batch->events->ts_ms(view.rows[0])) {
  columns_.resize(selection.readings.size());
  if (selection.readings.empty()) return;
  const std::size_t fields = selection.fields.size();
  space_.resize((fields + selection.readings.size()) * rows.size());
  if (fields == 0) return;
  for (std::size_t i = 0; i < rows.size(); ++i) selection.fields.read(events(), rows[i], space_.data() + i, rows.size());
}

PlanColumns::~PlanColumns() {
  for (Column& column : columns_) Py_XDECREF(column.texts);
}

std::span<const Value> PlanColumns::values(std::int32_t number) {
  Column& column = columns_[static_cast<std::size_t>(number)];
  if (column.is_read) return column.values;
  column.is_read = true;
  const Reading& read = reading(number);
  const std::size_t count = rows_.size();
  const std::span<Value> own(space_.data() + (selection_.fields.size() + static_cast<std::size_t>(number)) * count, count);
  column.values = own;
  if (read.field >= 0) {
    const std::span<Value> field(space_.data() + static_cast<std::size_t>(read.field) * count, count);
    if (read.is_number)
      std::copy(field.begin(), field.end(), own.begin());  // which other readings have too
    else
      column.values = field;
  } else if (read.source == Reading::Source::gap) {
    for (std::size_t i = 1; i < count; ++i)
      own[i - 1] = stream::integer_value(std::max<std::int64_t>(0, events().ts_ms(rows_[i]) - events().ts_ms(rows_[i - 1])));
    column.values = own.first(count - 1);
  } else if (read.source == Reading::Source::since) {
    for (std::size_t i = 0; i < count; ++i) own[i] = stream::integer_value(since_ms(i));
  } else {
    for (std::size_t i = 0; i < count; ++i) own[i] = events().field(rows_[i], read.path);
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

PyObject* PlanColumns::texts(std::int32_t number) {
  Column& column = columns_[static_cast<std::size_t>(number)];
  if (column.texts != nullptr) return column.texts;
  const std::span<const Value> found = values(number);
  const Py_ssize_t max_chars = reading(number).max_chars;
  column.texts =
      make_list(found.size(), [&](std::size_t i) { return text_object(events(), found[i], max_chars, stream::kMaxTimeMs); });
  return column.texts;
}

const stream::Vector<PlanColumns::Distinct>* PlanColumns::distinct(std::int32_t number) {
  Column& column = columns_[static_cast<std::size_t>(number)];
  if (column.has_distinct) return &column.distinct;
  const auto add = [&](std::uint32_t index) {
    if (column.distinct.empty()) column.distinct.reserve(std::min<std::size_t>(rows_.size(), 64));
    column.distinct.push_back({index, 1});
  };
  if (has_few_plain_texts(number)) {
    const std::span<const Value> found = values(number);
    for (std::uint32_t i = 0; i < found.size(); ++i) {
      if (found[i].length == 0) continue;
      const std::string_view text = events().text(found[i]);
      const auto place = std::find_if(column.distinct.begin(), column.distinct.end(), [&](const Distinct& one) {
        const Value& other = found[one.first];
        return other.length == text.size() && std::memcmp(events().text(other).data(), text.data(), text.size()) == 0;
      });
      place == column.distinct.end() ? add(i) : static_cast<void>(++place->count);
    }
    column.has_distinct = true;
    return &column.distinct;
  }
  PyObject* list = texts(number);
  const Owned places(list == nullptr ? nullptr : PyDict_New());
  if (places.get() == nullptr) return nullptr;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); ++i) {
    PyObject* text = PyList_GET_ITEM(list, i);
    if (PyUnicode_GET_LENGTH(text) == 0) continue;
    if (PyObject* place = PyDict_GetItemWithError(places.get(), text); place != nullptr) {
      ++column.distinct[PyLong_AsSize_t(place)].count;
      continue;
    }
    const Owned place(PyErr_Occurred() != nullptr ? nullptr : PyLong_FromSize_t(column.distinct.size()));
    if (place.get() == nullptr || PyDict_SetItem(places.get(), text, place.get()) < 0) return nullptr;
    add(static_cast<std::uint32_t>(i));
  }
  column.has_distinct = true;
  return &column.distinct;
}

// Returns whether all values are texts that are not cut, or missing; few enough for a search without a table.
bool PlanColumns::has_few_plain_texts(std::int32_t number) {
  const std::span<const Value> found = values(number);
  const auto most = static_cast<std::size_t>(reading(number).max_chars);
  return found.size() <= 64 && std::all_of(found.begin(), found.end(), [&](const Value& value) {
           return value.kind == Kind::text ? value.length <= most : value.kind == Kind::missing;
         });
}

PyObject* PlanColumns::text(std::int32_t number, std::uint32_t index) {
  const Column& column = columns_[static_cast<std::size_t>(number)];
  if (column.texts != nullptr) return Py_NewRef(PyList_GET_ITEM(column.texts, index));
  return batch().object(column.values[index]);
}

}  // namespace walle::columns

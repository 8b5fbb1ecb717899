#include "bindings/stream/event_objects.h"

#include <algorithm>
#include <charconv>
#include <cstring>

namespace walle::columns {

PyObject* object_of_whole(__int128 number) {
  if (number >= INT64_MIN && number <= INT64_MAX) return PyLong_FromLongLong(static_cast<long long>(number));
  std::uint8_t bytes[16];
  std::memcpy(bytes, &number, 16);
  return PyLong_FromNativeBytes(bytes, 16, Py_ASNATIVEBYTES_NATIVE_ENDIAN);
}

PyObject* refuse(const EventFault& fault) {
  PyObject* pair = Py_BuildValue("(s#s#)", fault.field.data(), static_cast<Py_ssize_t>(fault.field.size()), fault.what.data(),
                                 static_cast<Py_ssize_t>(fault.what.size()));
  if (pair != nullptr) PyErr_SetObject(PyExc_ValueError, pair);
  Py_XDECREF(pair);
  return nullptr;
}

bool read_text(PyObject* object, const char* what, std::string_view& text) {
  Py_ssize_t size = 0;
  const char* bytes = PyUnicode_Check(object) ? PyUnicode_AsUTF8AndSize(object, &size) : nullptr;
  if (bytes == nullptr) {
    PyErr_Clear();
    PyErr_Format(PyExc_TypeError, "%s must be text, is %.200s", what, Py_TYPE(object)->tp_name);
    return false;
  }
  text = {bytes, static_cast<std::size_t>(size)};
  return true;
}

bool check_count(const char* name, Py_ssize_t count, Py_ssize_t expected) {
  if (count == expected) return true;
  PyErr_Format(PyExc_TypeError, "%s() takes %zd arguments, got %zd", name, expected, count);
  return false;
}

PyObject* object_of_total(const stream::Total& total) {
  return total.is_real ? PyFloat_FromDouble(total.as_real()) : object_of_whole(total.whole);
}

PyObject* mean_of(const stream::Total& total) {
  if (total.count == 0) Py_RETURN_NONE;
  return PyFloat_FromDouble(total.mean());
}

double real_of(const Value& number) noexcept {
  if (number.kind == Kind::real) return number.real;
  return number.kind == Kind::large ? static_cast<double>(number.large) : static_cast<double>(number.integer);
}

bool is_within(const Value& value, double limit) noexcept {
  if (!value.is_number()) return false;
  constexpr std::int64_t kExact = std::int64_t{1} << 53;
  const bool is_exact = value.kind == Kind::integer && value.integer <= kExact && value.integer >= -kExact;
  if (const double real = real_of(value); value.kind == Kind::real || is_exact) return real <= limit && real >= -limit;
  Value bound;
  bound.kind = Kind::real;
  bound.real = limit;
  if (stream::compare_numbers(value, bound) > 0) return false;
  bound.real = -limit;
  return stream::compare_numbers(value, bound) >= 0;
}

std::string_view text_of(const EventBatch& events, const Value& value, Py_ssize_t max_chars, std::int64_t limit,
                         char (&digits)[kMaxDigits]) {
  if (value.kind == Kind::integer && value.integer <= limit && value.integer >= -limit)
    return {digits, static_cast<std::size_t>(std::to_chars(digits, digits + kMaxDigits, value.integer).ptr - digits)};
  if (value.kind != Kind::text) return {};
  const std::string_view text = events.text(value);
  if (text.size() <= static_cast<std::size_t>(std::max<Py_ssize_t>(max_chars, 0))) return text;
  std::size_t end = 0;
  for (Py_ssize_t left = max_chars; end < text.size(); ++end)
    if ((static_cast<unsigned char>(text[end]) & 0xc0) != 0x80 && left-- <= 0) break;
  return text.substr(0, end);
}

PyObject* text_object(const EventBatch& events, const Value& value, Py_ssize_t max_chars, std::int64_t limit) {
  char digits[kMaxDigits];
  const std::string_view text = text_of(events, value, max_chars, limit, digits);
  return PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), nullptr);
}

stream::Vector<Value> gaps_of(const EventBatch& events, const Rows& rows) {
  stream::Vector<Value> gaps;
  gaps.reserve(rows.size());
  for (std::size_t i = 1; i < rows.size(); ++i)
    gaps.push_back(stream::integer_value(std::max<std::int64_t>(0, events.ts_ms(rows[i]) - events.ts_ms(rows[i - 1]))));
  return gaps;
}

void keep_numbers(stream::Vector<Value>& values, const double* fallback, double limit) {
  std::size_t kept = 0;
  for (const Value& value : values) {
    const bool is_kept = is_within(value, limit);
    if (!is_kept && fallback == nullptr) continue;
    Value number;
    number.kind = Kind::real;
    number.real = is_kept ? real_of(value) : *fallback;
    values[kept++] = number;
  }
  values.resize(kept);
}

}  // namespace walle::columns

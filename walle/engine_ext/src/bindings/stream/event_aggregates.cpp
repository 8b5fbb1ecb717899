#include "bindings/stream/event_aggregates.h"

#include <cmath>
#include <iterator>
#include <string>

namespace walle::columns {

namespace {

constexpr std::string_view kFunctions[] = {"count",    "sum", "mean", "min",    "max", "first", "last",
                                           "distinct", "std", "q1",   "median", "q3",  "span"};

PyObject* distinct_of(const Groups& groups, const stream::Vector<Value>& values, std::string_view field) {
  stream::EventGroups present{groups.groups.batch, {}, {}, groups.groups.count, {}};
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!values[i].is_present()) continue;
    present.rows.push_back(groups.groups.rows[i]);
    present.groups.push_back(groups.groups.groups[i]);
  }
  present.keys.push_back({"", stream::Vector<Value>(groups.groups.count), {}});  // the group that a value is of
  for (std::uint32_t i = 0; i < groups.groups.count; ++i) present.keys[0].values[i] = stream::integer_value(i);
  const stream::EventGroups pairs = stream::group_by(present, field);
  PyObject* lists = make_list(groups.groups.count, [](std::size_t) { return PyList_New(0); });
  for (std::uint32_t i = 0; lists != nullptr && i < pairs.count; ++i) {
    PyObject* value = groups.batch->object(pairs.keys[1].values[i]);
    if (value == nullptr || PyList_Append(PyList_GET_ITEM(lists, pairs.keys[0].values[i].integer), value) < 0) Py_CLEAR(lists);
    Py_XDECREF(value);
  }
  return lists;
}

PyObject* object_or_none(const Groups& groups, const stream::Vector<Value>& values) {
  return make_list(values.size(), [&](std::size_t i) { return groups.batch->object(values[i]); });
}

}  // namespace

bool find_function(std::string_view name, Function& function) noexcept {
  for (std::size_t i = 0; i < std::size(kFunctions); ++i) {
    if (name != kFunctions[i]) continue;
    function = static_cast<Function>(i);
    return true;
  }
  return false;
}

bool read_function(PyObject* object, Function& function) {
  std::string_view text;
  if (!read_text(object, "the aggregation", text)) return false;
  if (find_function(text, function)) return true;
  refuse({"aggregation", "'" + std::string(text) +
                             "' is unknown; use count, sum, mean, min, max, first, last, distinct, std, q1, median, q3 or span"});
  return false;
}

PyObject* aggregate(const Groups& groups, Function function, std::string_view field, const stream::Vector<Value>& values) {
  const stream::EventGroups& all = groups.groups;
  switch (function) {
    case Function::count: {
      const auto counts = field.empty() ? stream::count_rows(all) : stream::count_values(all, values);
      return make_list(all.count, [&](std::size_t i) { return PyLong_FromUnsignedLongLong(counts[i]); });
    }
    case Function::sum:
    case Function::mean: {
      const auto totals = stream::sums(all, values);
      return make_list(
          all.count, [&](std::size_t i) { return function == Function::sum ? object_of_total(totals[i]) : mean_of(totals[i]); });
    }
    case Function::min:
    case Function::max: return object_or_none(groups, stream::extremes(all, values, function == Function::max));
    case Function::first: return object_or_none(groups, stream::first_values(all, values));
    case Function::last: return object_or_none(groups, stream::last_values(all, values));
    case Function::distinct: return distinct_of(groups, values, field);
    case Function::std: {
      const auto found = stream::deviations(all, values);
      return make_list(all.count,
                       [&](std::size_t i) { return std::isnan(found[i]) ? Py_NewRef(Py_None) : PyFloat_FromDouble(found[i]); });
    }
    case Function::q1:
    case Function::median:
    case Function::q3: {
      const auto part = 1 + static_cast<std::uint32_t>(function) - static_cast<std::uint32_t>(Function::q1);
      return object_or_none(groups, stream::quantiles(all, values, part, 4));
    }
    case Function::span: {
      const auto low = stream::extremes(all, values, false), high = stream::extremes(all, values, true);
      return make_list(all.count, [&](std::size_t i) -> PyObject* {
        std::int64_t whole = 0;
        if (low[i].kind == Kind::integer && high[i].kind == Kind::integer &&
            !__builtin_sub_overflow(high[i].integer, low[i].integer, &whole))
          return PyLong_FromLongLong(whole);
        PyObject *most = groups.batch->object(high[i]), *least = groups.batch->object(low[i]);
        PyObject* span = most == nullptr || least == nullptr ? nullptr
                         : most == Py_None                   ? Py_NewRef(Py_None)
                                                             : PyNumber_Subtract(most, least);
        Py_XDECREF(most);
        Py_XDECREF(least);
        return span;
      });
    }
  }
  Py_UNREACHABLE();
}

}  // namespace walle::columns

// Aggregations of a field in each group, as Python objects.
#pragma once
#include "bindings/stream/event_objects.h"

namespace walle::columns {

enum class Function : std::uint8_t { count, sum, mean, min, max, first, last, distinct, std, q1, median, q3, span };
// Returns false with an EventFault as a Python error where the aggregation is unknown.
bool read_function(PyObject* object, Function& function);
// Returns the aggregation of this name, or false.
bool find_function(std::string_view name, Function& function) noexcept;

// Returns the list of an aggregation's results, one for each group. `values` are those of the groups' rows; `field` is empty
// where `count` counts events.
PyObject* aggregate(const Groups& groups, Function function, std::string_view field, const stream::Vector<Value>& values);

}  // namespace walle::columns

// Plans: a template of results, compiled once and computed for the events of each visit in one call.
#pragma once
#include "bindings/stream/event_aggregates.h"
#include "stream/field_table.h"

namespace walle::columns {

// A field of a selection, and how its values are read. A column that several steps use is read once.
struct Reading {
  enum class Source : std::uint8_t { path, gap, since };  // `gap_ms`, `since_ms`
  Source source = Source::path;
  stream::Text name;
  FieldPath path{"ts_ms"};
  std::int32_t field = -1;  // in the selection's table; -1: not a key of the contents
  bool is_number = false, has_fallback = false, is_text = false;
  double fallback = 0, limit = 0;
  Py_ssize_t max_chars = 0;
};

// The functions of a plan that are not aggregations.
enum class Special : std::uint8_t {
  spread,
  column,
  of_first,
  of_last,
  rise,
  fall,
  turns,
  mean_step,
  distinct,
  distinct_count,
  first_seen,
  most_common,
  records
};

// A dict, a list, or a step of a template.
struct Node {
  enum class Kind : std::uint8_t { dict, list, aggregation, special };
  Kind kind = Kind::dict;
  Function function{};        // of an aggregation
  Special special{};          // of a special one
  std::int32_t reading = -1;  // -1: none
  std::int32_t digits = -1;   // -1: not rounded
  std::size_t items = SIZE_MAX;
  bool has_start = false;
  double start = 0;
  PyObject* key = nullptr;  // in the dict that has this node; the plan owns it
  stream::Vector<Node> children;
};

struct Selection {
  PyObject* key = nullptr;  // an event id, or None for all events; the plan owns it
  stream::Vector<Reading> readings;
  stream::FieldTable fields;  // of the contents, read in one pass over each event
  Node root;
};

// Holds exact str, None and C++ memory only, so that it is in no reference cycle.
struct Plan {
  Plan() = default;
  ~Plan() {
    for (PyObject* object : kept) Py_DECREF(object);
  }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  stream::Vector<Selection> selections;
  PyObject* spread_keys[4] = {};  // of the dict of `spread`; in `kept`
  stream::Vector<PyObject*> kept;
};

// Both return a new reference, or a null pointer with a Python error; they throw EventFault.
PyObject* new_plan(PyTypeObject* type, PyObject* selections);
PyObject* run_plan(PyObject* plan, const View& view);

}  // namespace walle::columns

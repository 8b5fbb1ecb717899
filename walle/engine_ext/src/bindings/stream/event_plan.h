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
  std::int32_t field = -1;  // number in the selection's table; -1: not a key of the contents
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
  records,
  tally
};

// A part of a template: a container, a step, a selection of events, a constant, or a value that a run is given.
struct Node {
  enum class Kind : std::uint8_t { dict, list, aggregation, special, selection, constant, given };
  Kind kind = Kind::dict;
  Function function{};          // function of an aggregation
  Special special{};            // kind of a special node
  std::int32_t reading = -1;    // -1: none
  std::int32_t digits = -1;     // -1: not rounded
  std::uint32_t selection = 0;  // number of a selection
  std::size_t items = SIZE_MAX;
  std::size_t min_events = 1;  // least events of a selection: with fewer it is missing
  bool has_start = false, is_whole = false, omits_empty = false, is_required = false;
  double start = 0;
  Value least{};                   // missing: no bound
  PyObject* key = nullptr;         // key in the dict that has this node; the plan owns it
  stream::Text packed_key;         // bytes of `key` in MessagePack; empty for None
  PyObject* object = nullptr;      // value of a constant, name of a given value; the plan owns it
  stream::Vector<Node> children;   // fields of `records`, texts of `tally`
  stream::Vector<Node> otherwise;  // none or one, in place of a missing result
};

struct Selection {
  PyObject* key = nullptr;  // an event id, or None for all events; the plan owns it
  stream::Vector<Reading> readings;
  stream::FieldTable fields;  // fields of the contents, read in one pass over each event
};

// Holds exact str, int, float, bool, None, a type and C++ memory only, so that it is in no reference cycle.
struct Plan {
  explicit Plan(PyTypeObject* type_of_encoded)
      : encoded_type(reinterpret_cast<PyTypeObject*>(Py_NewRef(reinterpret_cast<PyObject*>(type_of_encoded)))) {}
  ~Plan() {
    for (PyObject* object : kept) Py_DECREF(object);
    Py_DECREF(encoded_type);
  }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  Node root;
  stream::Vector<Selection> selections;  // the first one is of all events
  PyObject* spread_keys[4] = {};         // keys of the dict of `spread`; in `kept`
  stream::Vector<PyObject*> kept;
  PyTypeObject* encoded_type;
};

// Compiles a template: of `selections`, a dict of event ids and dicts of steps, or else of one result.
PyObject* new_plan(PyTypeObject* type, PyTypeObject* encoded_type, PyObject* given, bool is_selections);
// Computes a plan with the given values, a dict. `run_plan` returns Python objects, `encode_plan` an Encoded.
PyObject* run_plan(PyObject* plan, const View& view, PyObject* values);
PyObject* encode_plan(PyObject* plan, const View& view, PyObject* values);
// All return a new reference, or a null pointer with a Python error; they throw EventFault.

}  // namespace walle::columns

// One call for each event is what these types are measured by, so they are written against Python's C API
// (docs/adr/0018-triggers.md).
#include "bindings/stream/stream_types.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <new>
#include <utility>

#include "bindings/stream/event_sequences.h"
#include "bindings/stream/packed_size.h"
#include "bindings/stream/trigger_matching.h"
#include "stream/byte_span.h"

namespace walle {

namespace {

struct TrieObject {
  PyObject_HEAD TriggerMatching* matching;
};

// What EventStream has beside its matching.
struct StreamState {
  StreamState(stream::TimeBounds recent, stream::PageBounds pages) : sequences(recent, pages), span(pages.max_span_bytes) {}
  ~StreamState() {
    Py_XDECREF(visit_type);
    Py_XDECREF(cut_pages);
    Py_XDECREF(restored_cut);
    for (PyObject* name : names) Py_XDECREF(name);
  }
  EventSequences sequences;
  stream::ByteSpan span;
  PyObject* visit_type = nullptr;
  PyObject* names[6] = {};  // interned: event_id, page_id, ts_ms, contents, size_bytes, encoded
  stream::Id page_enter = 0, page_exit = 0;
  PyObject* cut_pages = nullptr;     // tuple of page ids whose visit was evicted before its exit, the latest one at the end
  PyObject* restored_cut = nullptr;  // takes the place of cut_pages at restored_at; null: none
  std::int64_t restored_at = 0, max_open = 0, max_span = 0, cut_exits = 0;
  std::int64_t max_event_bytes = 0, last_size_bytes = 0, last_position = std::numeric_limits<std::int64_t>::min();
};

struct StreamObject {
  PyObject_HEAD TriggerMatching* matching;  // same place as TrieObject's: both types share functions
  StreamState* state;
};

TriggerMatching& matching_of(PyObject* self) { return *reinterpret_cast<TrieObject*>(self)->matching; }
StreamState& state_of(PyObject* self) { return *reinterpret_cast<StreamObject*>(self)->state; }

// Calls `body`, which returns an object or a null pointer with a Python error. No C++ exception may leave it.
template <typename Body>
PyObject* guarded(Body body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
}

PyObject* trie_add(PyObject* self, PyObject* arguments) {
  return guarded([&] { return matching_of(self).add(arguments); });
}

PyObject* trie_remove(PyObject* self, PyObject* arguments) {
  return guarded([&] { return matching_of(self).remove(arguments); });
}

Py_ssize_t trie_length(PyObject* self) { return static_cast<Py_ssize_t>(matching_of(self).trie().size()); }
PyObject* trie_pending(PyObject* self, void*) { return PyLong_FromSize_t(matching_of(self).trie().pending()); }
PyObject* trie_node_count(PyObject* self, void*) { return PyLong_FromSize_t(matching_of(self).trie().node_count()); }

PyObject* none_as_null(PyObject* value) { return value == Py_None ? nullptr : value; }

// feed(event_id, page_id, ts_ms=None, contents=None)
PyObject* trie_feed(PyObject* self, PyObject* const* arguments, Py_ssize_t count, PyObject* keywords) {
  PyObject* ts_ms = count > 2 ? arguments[2] : nullptr;
  PyObject* contents = count > 3 ? arguments[3] : nullptr;
  const Py_ssize_t named = keywords == nullptr ? 0 : PyTuple_GET_SIZE(keywords);
  for (Py_ssize_t i = 0; i < named; ++i) {
    PyObject* name = PyTuple_GET_ITEM(keywords, i);
    if (PyUnicode_CompareWithASCIIString(name, "ts_ms") == 0 && ts_ms == nullptr)
      ts_ms = arguments[count + i];
    else if (PyUnicode_CompareWithASCIIString(name, "contents") == 0 && contents == nullptr)
      contents = arguments[count + i];
    else
      return PyErr_Format(PyExc_TypeError, "feed() got an unexpected keyword argument '%U'", name);
  }
  if (count < 2 || count > 4)
    return PyErr_Format(PyExc_TypeError, "feed() takes event_id, page_id, ts_ms and contents, got %zd arguments", count);
  return guarded([&] {
    return matching_of(self).feed(arguments[0], arguments[1], ts_ms == Py_None ? nullptr : ts_ms,
                                  contents == Py_None ? nullptr : contents);
  });
}

PyObject* trie_feed_many(PyObject* self, PyObject* arguments, PyObject* keywords) {
  static const char* const names[] = {"event_ids", "page_ids", "times", "contents", nullptr};
  PyObject *event_ids = nullptr, *page_ids = nullptr, *times = Py_None, *contents = Py_None;
  if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "OO|OO", const_cast<char**>(names), &event_ids, &page_ids, &times,
                                   &contents))
    return nullptr;
  return guarded([&] { return matching_of(self).feed_many(event_ids, page_ids, none_as_null(times), none_as_null(contents)); });
}

// TriggerTrie(event_error)
PyObject* trie_new(PyTypeObject* type, PyObject* arguments, PyObject*) {
  PyObject* event_error = nullptr;
  if (!PyArg_ParseTuple(arguments, "O", &event_error)) return nullptr;
  return guarded([&]() -> PyObject* {
    auto matching = std::make_unique<TriggerMatching>(event_error);
    auto* self = reinterpret_cast<TrieObject*>(type->tp_alloc(type, 0));
    if (self != nullptr) self->matching = matching.release();
    return reinterpret_cast<PyObject*>(self);
  });
}

int trie_traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  const TriggerMatching* matching = reinterpret_cast<TrieObject*>(self)->matching;
  return matching == nullptr ? 0 : matching->traverse(visit, arg);
}

int trie_clear(PyObject* self) {
  if (TriggerMatching* matching = reinterpret_cast<TrieObject*>(self)->matching; matching != nullptr) matching->clear();
  return 0;
}

void trie_dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  delete reinterpret_cast<TrieObject*>(self)->matching;
  type->tp_free(self);
  Py_DECREF(type);
}

// EventStream(event_error, page_enter, page_exit, max_event_bytes, (max_events, max_bytes, max_age_ms),
//             (max_open, max_bytes, max_span, max_age_ms, max_span_bytes))
PyObject* stream_new(PyTypeObject* type, PyObject* arguments, PyObject*) {
  PyObject *event_error = nullptr, *page_enter = nullptr, *page_exit = nullptr;
  long long limit = 0, recent[3], pages[5];
  if (!PyArg_ParseTuple(arguments, "OUUL(LLL)(LLLLL)", &event_error, &page_enter, &page_exit, &limit, &recent[0], &recent[1],
                        &recent[2], &pages[0], &pages[1], &pages[2], &pages[3], &pages[4]))
    return nullptr;
  if (recent[0] < 1 || recent[1] < 1 || recent[2] < 0 || pages[0] < 1 || pages[1] < 1 || pages[2] < 1 || pages[3] < 0 ||
      pages[4] < 1)
    return PyErr_Format(
        PyExc_ValueError,
        "a bound of a sequence is below 1: %lld events and %lld bytes; %lld visits, %lld bytes, %lld positions and %lld bytes of"
        " all events since their enter",
        recent[0], recent[1], pages[0], pages[1], pages[2], pages[4]);
  return guarded([&]() -> PyObject* {
    auto state = std::make_unique<StreamState>(stream::TimeBounds{recent[0], recent[1], recent[2]},
                                               stream::PageBounds{pages[0], pages[1], pages[2], pages[3], pages[4]});
    PyObject* core = PyImport_ImportModule("walle.engine_ext._core");
    state->visit_type = core == nullptr ? nullptr : PyObject_GetAttrString(core, "PageVisit");
    Py_XDECREF(core);
    if (state->visit_type == nullptr) return nullptr;
    const char* const names[] = {"event_id", "page_id", "ts_ms", "contents", "size_bytes", "encoded"};
    for (int i = 0; i < 6; ++i)
      if ((state->names[i] = PyUnicode_InternFromString(names[i])) == nullptr) return nullptr;
    auto matching = std::make_unique<TriggerMatching>(event_error);
    state->page_enter = matching->ids().acquire(page_enter);
    state->page_exit = matching->ids().acquire(page_exit);
    state->max_event_bytes = limit;
    state->max_open = pages[0];
    state->max_span = pages[2];
    if ((state->cut_pages = PyTuple_New(0)) == nullptr) return nullptr;
    auto* self = reinterpret_cast<StreamObject*>(type->tp_alloc(type, 0));
    if (self == nullptr) return nullptr;
    self->matching = matching.release();
    self->state = state.release();
    return reinterpret_cast<PyObject*>(self);
  });
}

int stream_traverse(PyObject* self, visitproc visit, void* arg) {
  const StreamState* state = reinterpret_cast<StreamObject*>(self)->state;
  if (state != nullptr) {
    if (const int result = state->sequences.traverse(visit, arg); result != 0) return result;
  }
  return trie_traverse(self, visit, arg);
}

void stream_dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  delete reinterpret_cast<StreamObject*>(self)->state;
  delete reinterpret_cast<StreamObject*>(self)->matching;
  type->tp_free(self);
  Py_DECREF(type);
}

// The fields of an event, as new references.
struct Fields {
  PyObject* values[4] = {};  // event_id, page_id, ts_ms, contents
  ~Fields() {
    for (PyObject* value : values) Py_XDECREF(value);
  }
};

// Returns the bytes of the event as walle.pipeline.events.event.Event.size_bytes does, and asks that where it must decide; -1
// with an error.
std::int64_t event_size(const StreamState& state, PyObject* event, const Fields& fields) {
  std::int64_t size = 1;
  for (PyObject* value : fields.values) {
    const std::int64_t part = packed_size(value);
    if (part < 0) size = -1;
    if (size < 0) break;
    size += part;
  }
  if (size >= 0 && size <= state.max_event_bytes) return size;
  PyObject* result = PyObject_CallMethodNoArgs(event, state.names[4]);
  size = result == nullptr ? -1 : PyLong_AsLongLong(result);
  Py_XDECREF(result);
  return PyErr_Occurred() != nullptr ? -1 : size;
}

// Takes up the cut pages of an earlier stream once the position is reached.
void restore_cut_at(StreamState& state, std::int64_t position) {
  if (state.restored_cut == nullptr || position < state.restored_at) return;
  PyObject* before = std::exchange(state.cut_pages, std::exchange(state.restored_cut, nullptr));
  Py_DECREF(before);  // strings: no code of Python runs
}

bool is_cut(const StreamState& state, PyObject* page_id) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(state.cut_pages); ++i)
    if (PyUnicode_Compare(PyTuple_GET_ITEM(state.cut_pages, i), page_id) == 0) return true;
  return false;
}

// Removes the page from the cut ones; `added`: and adds it at the end, within the bound. Returns 0, or -1 with an error.
int change_cut(StreamState& state, PyObject* page_id, bool added) {
  PyObject* pages = PyList_New(0);
  if (pages == nullptr) return -1;
  int failed = 0;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(state.cut_pages) && failed == 0; ++i) {
    PyObject* page = PyTuple_GET_ITEM(state.cut_pages, i);
    if (PyUnicode_Compare(page, page_id) != 0) failed = PyList_Append(pages, page);
  }
  if (failed == 0 && added) failed = PyList_Append(pages, page_id);
  const Py_ssize_t length = PyList_GET_SIZE(pages), bound = static_cast<Py_ssize_t>(state.max_open);
  if (failed == 0 && added && length > bound) failed = PyList_SetSlice(pages, 0, length - bound, nullptr);
  PyObject* changed = failed == 0 ? PyList_AsTuple(pages) : nullptr;
  Py_DECREF(pages);
  if (changed == nullptr) return -1;
  Py_DECREF(std::exchange(state.cut_pages, changed));
  return 0;
}

// Returns the visit of an event whose page's visit was cut, with this event alone, as a new reference; null with an error.
PyObject* cut_visit(StreamState& state, PyObject* page_id, PyObject* event, stream::PageEvent kind, std::int64_t size_bytes) {
  PageVisitObject* visit = new_visit(reinterpret_cast<PyTypeObject*>(state.visit_type), page_id, state.last_position);
  if (visit == nullptr) return nullptr;
  visit->is_cut = 1;
  visit->size_bytes = size_bytes;
  const bool ends = kind == stream::PageEvent::exit;
  if (PyList_Append(visit->events, event) < 0 || (ends && change_cut(state, page_id, false) < 0)) {
    Py_DECREF(visit);
    return nullptr;
  }
  state.cut_exits += ends ? 1 : 0;
  return reinterpret_cast<PyObject*>(visit);
}

// Returns the bytes of the event's attribute `encoded`; -1 without it, and with an error.
std::int64_t encoded_size(const StreamState& state, PyObject* event) {
  PyObject* encoded = nullptr;
  if (PyObject_GetOptionalAttr(event, state.names[5], &encoded) <= 0) return -1;
  const std::int64_t size = PyBytes_CheckExact(encoded) ? PyBytes_GET_SIZE(encoded) : -1;
  Py_DECREF(encoded);
  return size;
}

PyObject* feed_event(PyObject* self, std::int64_t position, PyObject* event, PyObject* given_size) {
  TriggerMatching& matching = matching_of(self);
  StreamState& state = state_of(self);
  Fields fields;
  // An event that was read from JSON has its bytes: its contents are decoded only where a condition tests them.
  const std::int64_t encoded_bytes = encoded_size(state, event);
  if (encoded_bytes < 0 && PyErr_Occurred() != nullptr) return nullptr;
  for (int i = 0; i < (encoded_bytes >= 0 && !matching.tests_contents() ? 3 : 4); ++i)
    if ((fields.values[i] = PyObject_GetAttr(event, state.names[i])) == nullptr) return nullptr;
  PyObject *event_id = fields.values[0], *page_id = fields.values[1];
  stream::Moment moment{0, position};
  stream::Id event_number = stream::kUnknown, page_number = stream::kUnknown;
  if (matching.check_idle() < 0 || matching.check_event_id(event_id) < 0 || matching.check_page_id(page_id) < 0 ||
      matching.read_time(fields.values[2], moment.ts_ms) < 0)
    return nullptr;
  const std::int64_t size_bytes = given_size != nullptr ? PyLong_AsLongLong(given_size)
                                  : encoded_bytes >= 0  ? encoded_bytes
                                                        : event_size(state, event, fields);
  if (size_bytes < 0) {
    if (PyErr_Occurred() == nullptr) PyErr_SetString(PyExc_ValueError, "size_bytes is negative");
    return nullptr;
  }
  if (matching.number_of(event_id, event_number) < 0 || matching.number_of(page_id, page_number) < 0) return nullptr;
  if (position <= state.last_position)
    return PyErr_Format(PyExc_ValueError, "position %lld after %lld: positions must grow", static_cast<long long>(position),
                        static_cast<long long>(state.last_position));
  const auto kind = event_number == state.page_enter  ? stream::PageEvent::enter
                    : event_number == state.page_exit ? stream::PageEvent::exit
                                                      : stream::PageEvent::other;
  EventSequences::Visited visited;
  std::vector<PyObject*> dropped;
  if (kind == stream::PageEvent::enter && matching.acquire(page_id, page_number) < 0) return nullptr;
  restore_cut_at(state, position);
  state.last_position = position;
  state.last_size_bytes = size_bytes;
  state.span.add(position, size_bytes);
  int failed = state.sequences.feed(event, page_id, kind, page_number, moment, size_bytes,
                                    reinterpret_cast<PyTypeObject*>(state.visit_type), visited, dropped);
  if (failed == 0 && visited.visit == nullptr && PyTuple_GET_SIZE(state.cut_pages) != 0 && is_cut(state, page_id)) {
    visited.visit = cut_visit(state, page_id, event, kind, size_bytes);
    failed = visited.visit == nullptr ? -1 : 0;
  }
  for (PyObject* page : visited.evicted_pages)
    if (failed == 0) failed = change_cut(state, page, true);
  PyObject* old_tasks = nullptr;
  PyObject* tasks = failed < 0 ? nullptr : matching.feed_numbers(event_number, page_number, moment, fields.values[3], old_tasks);
  for (const stream::Id page : visited.closed_pages) matching.ids().release(page);
  PyObject* visit = visited.visit == nullptr ? Py_NewRef(Py_None) : visited.visit;
  PyObject* result = tasks == nullptr ? nullptr : PyTuple_Pack(2, visit, tasks);
  Py_DECREF(visit);
  Py_XDECREF(tasks);
  Py_XDECREF(old_tasks);
  for (PyObject* object : dropped) Py_DECREF(object);
  return result;
}

// feed(position, event, size_bytes=None)
PyObject* stream_feed(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  if (count < 2 || count > 3)
    return PyErr_Format(PyExc_TypeError, "feed() takes position, event and size_bytes, got %zd arguments", count);
  const long long position = PyLong_AsLongLong(arguments[0]);
  if (position == -1 && PyErr_Occurred() != nullptr) return nullptr;
  return guarded([&] { return feed_event(self, position, arguments[1], count == 3 ? none_as_null(arguments[2]) : nullptr); });
}

// recent(count=None)
PyObject* stream_recent(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  Py_ssize_t wanted = std::numeric_limits<Py_ssize_t>::max();
  if (count > 1) return PyErr_Format(PyExc_TypeError, "recent() takes count, got %zd arguments", count);
  if (count == 1 && arguments[0] != Py_None) {
    wanted = PyLong_AsSsize_t(arguments[0]);
    if (wanted == -1 && PyErr_Occurred() != nullptr) return nullptr;
    if (wanted < 0) return PyErr_Format(PyExc_ValueError, "recent() cannot return %zd events", wanted);
  }
  return guarded([&] { return state_of(self).sequences.latest(static_cast<std::size_t>(wanted)); });
}

PyObject* stream_needed_from(PyObject* self, void*) {
  const StreamState& state = state_of(self);
  const stream::TriggerTrie& trie = matching_of(self).trie();
  std::int64_t skipping = trie.oldest_skipping();  // such a match waits without a bound, a replay does not go back without one
  if (skipping != std::numeric_limits<std::int64_t>::max())
    skipping = std::max({skipping, state.last_position - state.max_span, state.span.start()});
  const std::int64_t oldest = std::min({state.sequences.recent().oldest_position(), state.sequences.pages().oldest_position(),
                                        trie.oldest_consecutive(), skipping});
  if (oldest == std::numeric_limits<std::int64_t>::max()) Py_RETURN_NONE;
  return PyLong_FromLongLong(oldest);
}

PyObject* stream_counters(PyObject* self, PyObject*) {
  const EventSequences& sequences = state_of(self).sequences;
  const auto& recent = sequences.recent();
  const auto& pages = sequences.pages();
  return Py_BuildValue("{s:n,s:L,s:L,s:n,s:L,s:L,s:L}", "recent_events", static_cast<Py_ssize_t>(recent.size()), "recent_bytes",
                       static_cast<long long>(recent.size_bytes()), "dropped", static_cast<long long>(recent.dropped()),
                       "open_visits", static_cast<Py_ssize_t>(pages.open()), "visit_bytes",
                       static_cast<long long>(pages.size_bytes()), "evicted", static_cast<long long>(pages.evicted()),
                       "unmatched_exits", static_cast<long long>(pages.unmatched_exits() - state_of(self).cut_exits));
}

PyObject* stream_snapshot(PyObject* self, PyObject*) {
  return guarded([&] { return state_of(self).sequences.snapshot(); });
}

// cut_before(position)
PyObject* stream_cut_before(PyObject* self, PyObject* value) {
  const long long position = PyLong_AsLongLong(value);
  if (position == -1 && PyErr_Occurred() != nullptr) return nullptr;
  restore_cut_at(state_of(self), position);
  return Py_NewRef(state_of(self).cut_pages);
}

// open_visit(page_id)
PyObject* stream_open_visit(PyObject* self, PyObject* page_id) {
  if (!PyUnicode_CheckExact(page_id)) return PyErr_Format(PyExc_TypeError, "a page id must be str");
  const stream::Id page = matching_of(self).ids().find(page_id);
  PyObject* visit = page == stream::kUnknown ? nullptr : state_of(self).sequences.open_visit(page);
  return Py_NewRef(visit == nullptr ? Py_None : visit);
}

// restore_cut(pages, position)
PyObject* stream_restore_cut(PyObject* self, PyObject* arguments) {
  PyObject* pages = nullptr;
  long long position = 0;
  if (!PyArg_ParseTuple(arguments, "O!L", &PyTuple_Type, &pages, &position)) return nullptr;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(pages); ++i)
    if (!PyUnicode_Check(PyTuple_GET_ITEM(pages, i))) return PyErr_Format(PyExc_TypeError, "a page id must be str");
  StreamState& state = state_of(self);
  Py_XDECREF(std::exchange(state.restored_cut, Py_NewRef(pages)));
  state.restored_at = position;
  Py_RETURN_NONE;
}

PyObject* stream_last_size(PyObject* self, void*) { return PyLong_FromLongLong(state_of(self).last_size_bytes); }

PyObject* packed_size_of(PyObject*, PyObject* value) {
  const std::int64_t size = packed_size(value);
  if (size < 0) Py_RETURN_NONE;
  return PyLong_FromLongLong(size);
}

PyObject* packed_values_of(PyObject*, PyObject* data) {
  if (!PyBytes_Check(data)) return PyErr_Format(PyExc_TypeError, "packed data must be bytes");
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(PyBytes_AS_STRING(data));
  return PyLong_FromSize_t(stream::count_values(bytes, static_cast<std::size_t>(PyBytes_GET_SIZE(data))));
}

template <typename Function>
PyCFunction as_method(Function* function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

PyMethodDef trie_methods[] = {{"_add", trie_add, METH_VARARGS, nullptr},
                              {"_remove", trie_remove, METH_VARARGS, nullptr},
                              {"feed", as_method(trie_feed), METH_FASTCALL | METH_KEYWORDS, nullptr},
                              {"feed_many", as_method(trie_feed_many), METH_VARARGS | METH_KEYWORDS, nullptr},
                              {nullptr, nullptr, 0, nullptr}};
PyGetSetDef trie_properties[] = {{"pending", trie_pending, nullptr, nullptr, nullptr},
                                 {"node_count", trie_node_count, nullptr, nullptr, nullptr},
                                 {nullptr, nullptr, nullptr, nullptr, nullptr}};
PyType_Slot trie_slots[] = {{Py_tp_new, reinterpret_cast<void*>(trie_new)},
                            {Py_tp_traverse, reinterpret_cast<void*>(trie_traverse)},
                            {Py_tp_clear, reinterpret_cast<void*>(trie_clear)},
                            {Py_tp_dealloc, reinterpret_cast<void*>(trie_dealloc)},
                            {Py_tp_methods, trie_methods},
                            {Py_tp_getset, trie_properties},
                            {Py_sq_length, reinterpret_cast<void*>(trie_length)},
                            {0, nullptr}};

PyMethodDef stream_methods[] = {{"_add", trie_add, METH_VARARGS, nullptr},
                                {"_remove", trie_remove, METH_VARARGS, nullptr},
                                {"feed", as_method(stream_feed), METH_FASTCALL, nullptr},
                                {"recent", as_method(stream_recent), METH_FASTCALL, nullptr},
                                {"counters", stream_counters, METH_NOARGS, nullptr},
                                {"_snapshot", stream_snapshot, METH_NOARGS, nullptr},
                                {"cut_before", stream_cut_before, METH_O, nullptr},
                                {"open_visit", stream_open_visit, METH_O, nullptr},
                                {"restore_cut", stream_restore_cut, METH_VARARGS, nullptr},
                                {nullptr, nullptr, 0, nullptr}};
PyGetSetDef stream_properties[] = {{"pending", trie_pending, nullptr, nullptr, nullptr},
                                   {"node_count", trie_node_count, nullptr, nullptr, nullptr},
                                   {"needed_from", stream_needed_from, nullptr, nullptr, nullptr},
                                   {"last_size_bytes", stream_last_size, nullptr, nullptr, nullptr},
                                   {nullptr, nullptr, nullptr, nullptr, nullptr}};
PyType_Slot stream_slots[] = {{Py_tp_new, reinterpret_cast<void*>(stream_new)},
                              {Py_tp_traverse, reinterpret_cast<void*>(stream_traverse)},
                              {Py_tp_clear, reinterpret_cast<void*>(trie_clear)},
                              {Py_tp_dealloc, reinterpret_cast<void*>(stream_dealloc)},
                              {Py_tp_methods, stream_methods},
                              {Py_tp_getset, stream_properties},
                              {Py_sq_length, reinterpret_cast<void*>(trie_length)},
                              {0, nullptr}};

constexpr unsigned kStreamTypeFlags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_IMMUTABLETYPE;
PyType_Spec trie_spec = {"walle.engine_ext._core.TriggerTrie", sizeof(TrieObject), 0, kStreamTypeFlags, trie_slots};
PyType_Spec stream_spec = {"walle.engine_ext._core.EventStream", sizeof(StreamObject), 0, kStreamTypeFlags, stream_slots};
PyMethodDef stream_functions[] = {{"packed_size", packed_size_of, METH_O, nullptr},
                                  {"packed_values", packed_values_of, METH_O, nullptr},
                                  {nullptr, nullptr, 0, nullptr}};

}  // namespace

int add_stream_types(PyObject* module) {
  for (PyType_Spec* spec : {&page_visit_spec, &trie_spec, &stream_spec}) {
    PyObject* type = PyType_FromSpec(spec);
    const int failed = type == nullptr ? -1 : PyModule_AddType(module, reinterpret_cast<PyTypeObject*>(type));
    Py_XDECREF(type);
    if (failed < 0) return -1;
  }
  return PyModule_AddFunctions(module, stream_functions);
}

}  // namespace walle

#include "bindings/stream/event_sequences.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace walle {

namespace {

int visit_traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(reinterpret_cast<PageVisitObject*>(self)->events);
  return 0;
}

int visit_clear(PyObject* self) {
  Py_CLEAR(reinterpret_cast<PageVisitObject*>(self)->events);
  return 0;
}

void visit_dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  visit_clear(self);
  Py_CLEAR(reinterpret_cast<PageVisitObject*>(self)->page_id);
  type->tp_free(self);
  Py_DECREF(type);
}

PyMemberDef visit_members[] = {{"page_id", Py_T_OBJECT_EX, offsetof(PageVisitObject, page_id), Py_READONLY, nullptr},
                               {"events", Py_T_OBJECT_EX, offsetof(PageVisitObject, events), Py_READONLY, nullptr},
                               {"position", Py_T_LONGLONG, offsetof(PageVisitObject, position), Py_READONLY, nullptr},
                               {"size_bytes", Py_T_LONGLONG, offsetof(PageVisitObject, size_bytes), Py_READONLY, nullptr},
                               {"evicted", Py_T_BOOL, offsetof(PageVisitObject, evicted), Py_READONLY, nullptr},
                               {"is_cut", Py_T_BOOL, offsetof(PageVisitObject, is_cut), Py_READONLY, nullptr},
                               {nullptr, 0, 0, 0, nullptr}};

PyType_Slot visit_slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(visit_traverse)},
                             {Py_tp_clear, reinterpret_cast<void*>(visit_clear)},
                             {Py_tp_dealloc, reinterpret_cast<void*>(visit_dealloc)},
                             {Py_tp_members, visit_members},
                             {0, nullptr}};

}  // namespace

PageVisitObject* new_visit(PyTypeObject* type, PyObject* page_id, std::int64_t position) {
  PyObject* events = PyList_New(0);
  auto* visit = events == nullptr ? nullptr : reinterpret_cast<PageVisitObject*>(type->tp_alloc(type, 0));
  if (visit == nullptr) {
    Py_XDECREF(events);
    return nullptr;
  }
  visit->page_id = Py_NewRef(page_id);
  visit->events = events;
  visit->position = position;
  return visit;
}

PyType_Spec page_visit_spec = {
    "walle.engine_ext._core.PageVisit", sizeof(PageVisitObject), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE, visit_slots};

EventSequences::EventSequences(stream::TimeBounds recent, stream::PageBounds pages)
    : recent_(recent),
      pages_(pages),
      chunk_events_(std::clamp<std::int64_t>(recent.max_events / 16, 1, 64)),
      chunk_bytes_(std::min<std::int64_t>(recent.max_bytes / 16, 16 << 10)) {}

EventSequences::~EventSequences() {
  Py_XDECREF(shared_);
  for (const Chunk& chunk : chunks_) Py_DECREF(chunk.events);
  for (PyObject* visit : visits_) Py_XDECREF(visit);
}

int EventSequences::traverse(visitproc visit, void* arg) const {
  for (const Chunk& chunk : chunks_) Py_VISIT(chunk.events);
  Py_VISIT(shared_);
  for (PyObject* one : visits_) Py_VISIT(one);
  return 0;
}

int EventSequences::feed(PyObject* event, PyObject* page_id, stream::PageEvent kind, stream::Id page, stream::Moment moment,
                         std::int64_t size_bytes, PyTypeObject* visit_type, Visited& visited, std::vector<PyObject*>& dropped) {
  PageVisitObject* entered = nullptr;
  if (kind == stream::PageEvent::enter && (entered = new_visit(visit_type, page_id, moment.position)) == nullptr) return -1;
  if (append_to_chunk(event, size_bytes, dropped) < 0) {
    Py_XDECREF(reinterpret_cast<PyObject*>(entered));
    return -1;
  }
  drop_oldest(recent_.append(moment, size_bytes), dropped);
  const auto index = pages_.feed(kind, page, moment, size_bytes);
  if (entered != nullptr) {
    if (index >= visits_.size()) visits_.resize(index + 1);
    visits_[index] = reinterpret_cast<PyObject*>(entered);
  }
  int failed = 0;
  if (index != stream::PageSequence::kNoVisit) {
    visited.visit = Py_NewRef(visits_[index]);
    auto* visit = reinterpret_cast<PageVisitObject*>(visited.visit);
    failed = PyList_Append(visit->events, event);
    visit->size_bytes += size_bytes;
  }
  for (const auto closed : pages_.closed()) {
    PyObject* visit = std::exchange(visits_[closed], nullptr);
    const bool ended = closed == index && kind == stream::PageEvent::exit;
    reinterpret_cast<PageVisitObject*>(visit)->evicted = ended ? 0 : 1;
    if (!ended) visited.evicted_pages.push_back(reinterpret_cast<PageVisitObject*>(visit)->page_id);
    dropped.push_back(visit);
    visited.closed_pages.push_back(pages_.visit(closed).page);
  }
  if (failed < 0) Py_CLEAR(visited.visit);
  return failed;
}

int EventSequences::append_to_chunk(PyObject* event, std::int64_t size_bytes, std::vector<PyObject*>& dropped) {
  const bool has_room = !chunks_.empty() && PyList_GET_SIZE(chunks_.back().events) < chunk_events_ &&
                        chunks_.back().size_bytes + size_bytes <= chunk_bytes_;
  if (has_room) {
    if (PyList_Append(chunks_.back().events, event) < 0) return -1;
    chunks_.back().size_bytes += size_bytes;
    return 0;
  }
  PyObject* events = PyList_New(1);
  if (events == nullptr) return -1;
  PyList_SET_ITEM(events, 0, Py_NewRef(event));
  chunks_.push_back({events, size_bytes});
  if (shared_ != nullptr) dropped.push_back(std::exchange(shared_, nullptr));
  return 0;
}

void EventSequences::drop_oldest(std::size_t count, std::vector<PyObject*>& dropped) {
  first_ += static_cast<Py_ssize_t>(count);
  while (!chunks_.empty() && first_ >= PyList_GET_SIZE(chunks_.front().events)) {
    first_ -= PyList_GET_SIZE(chunks_.front().events);
    dropped.push_back(chunks_.front().events);
    chunks_.pop_front();
    if (shared_ != nullptr) dropped.push_back(std::exchange(shared_, nullptr));
  }
}

PyObject* EventSequences::latest(std::size_t count) const {
  const std::size_t length = std::min(count, recent_.size());
  PyObject* list = PyList_New(static_cast<Py_ssize_t>(length));
  if (list == nullptr) return nullptr;
  auto at = static_cast<Py_ssize_t>(length);
  for (auto chunk = chunks_.rbegin(); at > 0; ++chunk)
    for (Py_ssize_t i = PyList_GET_SIZE(chunk->events); i > 0 && at > 0;)
      PyList_SET_ITEM(list, --at, Py_NewRef(PyList_GET_ITEM(chunk->events, --i)));
  return list;
}

PyObject* EventSequences::snapshot() {
  if (shared_ == nullptr) {
    shared_ = PyTuple_New(static_cast<Py_ssize_t>(chunks_.size()));
    if (shared_ == nullptr) return nullptr;
    for (std::size_t i = 0; i < chunks_.size(); ++i)
      PyTuple_SET_ITEM(shared_, static_cast<Py_ssize_t>(i), Py_NewRef(chunks_[i].events));
  }
  return Py_BuildValue("(OnnL)", shared_, first_, static_cast<Py_ssize_t>(recent_.size()),
                       static_cast<long long>(recent_.size_bytes()));
}

}  // namespace walle

#include "bindings/stream/event_sequences.h"

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
                               {nullptr, 0, 0, 0, nullptr}};

PyType_Slot visit_slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(visit_traverse)},
                             {Py_tp_clear, reinterpret_cast<void*>(visit_clear)},
                             {Py_tp_dealloc, reinterpret_cast<void*>(visit_dealloc)},
                             {Py_tp_members, visit_members},
                             {0, nullptr}};

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

}  // namespace

PyType_Spec page_visit_spec = {
    "walle.engine_ext._core.PageVisit", sizeof(PageVisitObject), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE, visit_slots};

EventSequences::~EventSequences() {
  for (PyObject* event : events_) Py_DECREF(event);
  for (PyObject* visit : visits_) Py_XDECREF(visit);
}

int EventSequences::traverse(visitproc visit, void* arg) const {
  for (PyObject* event : events_) Py_VISIT(event);
  for (PyObject* one : visits_) Py_VISIT(one);
  return 0;
}

int EventSequences::feed(PyObject* event, PyObject* page_id, stream::PageEvent kind, stream::Id page, stream::Moment moment,
                         std::int64_t size_bytes, PyTypeObject* visit_type, Visited& visited, std::vector<PyObject*>& dropped) {
  PageVisitObject* entered = nullptr;
  if (kind == stream::PageEvent::enter && (entered = new_visit(visit_type, page_id, moment.position)) == nullptr) return -1;
  events_.push_back(Py_NewRef(event));
  for (std::size_t left = recent_.append(moment, size_bytes); left != 0; --left) {
    dropped.push_back(events_.front());
    events_.pop_front();
  }
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
    dropped.push_back(visit);
    visited.closed_pages.push_back(pages_.visit(closed).page);
  }
  if (failed < 0) Py_CLEAR(visited.visit);
  return failed;
}

PyObject* EventSequences::latest(std::size_t count) const {
  const std::size_t length = count < events_.size() ? count : events_.size();
  PyObject* list = PyList_New(static_cast<Py_ssize_t>(length));
  if (list == nullptr) return nullptr;
  for (std::size_t i = 0; i < length; ++i)
    PyList_SET_ITEM(list, static_cast<Py_ssize_t>(i), Py_NewRef(events_[events_.size() - length + i]));
  return list;
}

}  // namespace walle

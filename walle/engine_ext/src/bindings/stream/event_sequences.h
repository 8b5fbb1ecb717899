// Python events of one device by time and by page: the events themselves beside the bounds of stream::TimeSequence and
// stream::PageSequence, and the type of a page visit.
#pragma once
#include <Python.h>

#include <deque>
#include <vector>

#include "stream/page_sequence.h"
#include "stream/time_sequence.h"

namespace walle {

// A page visit as Python sees it. `events` is a list that grows while the page is open.
struct PageVisitObject {
  PyObject_HEAD PyObject* page_id;
  PyObject* events;
  long long position;  // of the enter event
  long long size_bytes;
  char evicted;  // beyond a bound, before its exit
};

extern PyType_Spec page_visit_spec;

class EventSequences {
 public:
  EventSequences(stream::TimeBounds recent, stream::PageBounds pages) : recent_(recent), pages_(pages) {}
  ~EventSequences();
  EventSequences(const EventSequences&) = delete;
  EventSequences& operator=(const EventSequences&) = delete;

  struct Visited {
    PyObject* visit = nullptr;             // a new reference; null if the page is not open, and after an error
    std::vector<stream::Id> closed_pages;  // once for each visit that was closed
  };
  // Appends the event to both sequences; returns 0, or -1 with a Python error. References that go are put into `dropped`, for the
  // caller to release when nothing is half done: a destructor may run any code.
  int feed(PyObject* event, PyObject* page_id, stream::PageEvent kind, stream::Id page, stream::Moment moment,
           std::int64_t size_bytes, PyTypeObject* visit_type, Visited& visited, std::vector<PyObject*>& dropped);
  // Returns a new list of the latest events, at most `count`, oldest first.
  PyObject* latest(std::size_t count) const;
  int traverse(visitproc visit, void* arg) const;

  const stream::TimeSequence& recent() const noexcept { return recent_; }
  const stream::PageSequence& pages() const noexcept { return pages_; }

 private:
  stream::TimeSequence recent_;
  stream::PageSequence pages_;
  std::deque<PyObject*> events_;   // of recent_
  std::vector<PyObject*> visits_;  // by index of pages_; null for a closed one
};

}  // namespace walle

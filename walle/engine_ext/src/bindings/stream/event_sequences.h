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
  long long position;  // position of the enter event
  long long size_bytes;
  char evicted;  // beyond a bound, before its exit
  char is_cut;   // true for a visit that was evicted before: `events` has its latest event only
};

extern PyType_Spec page_visit_spec;

// Returns a new visit without events; null with a Python error.
PageVisitObject* new_visit(PyTypeObject* type, PyObject* page_id, std::int64_t position);

class EventSequences {
 public:
  EventSequences(stream::TimeBounds recent, stream::PageBounds pages);
  ~EventSequences();
  EventSequences(const EventSequences&) = delete;
  EventSequences& operator=(const EventSequences&) = delete;

  struct Visited {
    PyObject* visit = nullptr;             // a new reference; null if the page is not open, and after an error
    std::vector<stream::Id> closed_pages;  // once for each visit that was closed
    std::vector<PyObject*> evicted_pages;  // page ids of evicted visits, borrowed from visits in `dropped`
  };
  // Appends the event to both sequences; returns 0, or -1 with a Python error. References that go are put into `dropped`, for the
  // caller to release when nothing is half done: a destructor may run any code.
  int feed(PyObject* event, PyObject* page_id, stream::PageEvent kind, stream::Id page, stream::Moment moment,
           std::int64_t size_bytes, PyTypeObject* visit_type, Visited& visited, std::vector<PyObject*>& dropped);
  // Returns a new list of the latest events, at most `count`, oldest first.
  PyObject* latest(std::size_t count) const;
  // Returns a new tuple (chunks, first, count, size_bytes) from which the latest events can be read at any later time: `count`
  // events of the lists in `chunks`, from index `first` of the first list on. Lists only grow, and are shared by all such tuples.
  PyObject* snapshot();
  int traverse(visitproc visit, void* arg) const;

  const stream::TimeSequence& recent() const noexcept { return recent_; }
  const stream::PageSequence& pages() const noexcept { return pages_; }
  // Returns the page's open visit, a borrowed reference; null, without an error, if there is none.
  PyObject* open_visit(stream::Id page) const noexcept {
    const auto index = pages_.open_visit(page);
    return index == stream::PageSequence::kNoVisit ? nullptr : visits_[index];
  }

 private:
  stream::TimeSequence recent_;
  stream::PageSequence pages_;
  // Events of recent_ in lists of bounded length and size, so that a snapshot keeps little more than its own events.
  struct Chunk {
    PyObject* events;
    std::int64_t size_bytes;
  };
  int append_to_chunk(PyObject* event, std::int64_t size_bytes, std::vector<PyObject*>& dropped);
  void drop_oldest(std::size_t count, std::vector<PyObject*>& dropped);

  std::int64_t chunk_events_, chunk_bytes_;
  std::deque<Chunk> chunks_;
  Py_ssize_t first_ = 0;           // index of the oldest event in the first chunk
  PyObject* shared_ = nullptr;     // tuple of the chunks' lists; null after the chunks have changed
  std::vector<PyObject*> visits_;  // by index of pages_; null for a closed one
};

}  // namespace walle

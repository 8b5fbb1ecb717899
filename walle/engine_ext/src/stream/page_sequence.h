// Page-level sequence (§5.1): the open visits of pages, with the sizes of their events, without the events.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "stream/condition.h"

namespace walle::stream {

struct PageBounds {
  std::int64_t max_open = 64;
  std::int64_t max_bytes = 4 << 20;
  std::int64_t max_span = 10000;           // positions since a visit's enter
  std::int64_t max_age_ms = 0;             // time since a visit's enter; 0: no bound
  std::int64_t max_span_bytes = 16 << 20;  // events of all pages since a visit's enter
};

enum class PageEvent { enter, exit, other };

// Several pages may be open at once. If one page is open several times, the visit that was entered last gets the events and the
// exit. Beyond a bound, the visit that was entered first is evicted.
class PageSequence {
 public:
  using VisitIndex = std::uint32_t;
  static constexpr VisitIndex kNoVisit = 0xFFFFFFFF;
  struct Visit {
    Moment entered;
    std::int64_t size_bytes = 0;
    std::int64_t fed_before = 0;  // bytes of all events before its enter
    Id page = kUnknown;
    VisitIndex enclosing = kNoVisit;                            // earlier open visit of the same page
    VisitIndex previous_open = kNoVisit, next_open = kNoVisit;  // neighbours in the order of the enters
  };

  explicit PageSequence(PageBounds bounds) : bounds_(bounds) {}
  // Returns the visit that the event belongs to, kNoVisit if its page is not open. `closed()` then lists the visits that this
  // event closed, an exit's own among them. Their indices are used again after the next call. Positions grow from call to call.
  VisitIndex feed(PageEvent kind, Id page, Moment moment, std::int64_t size_bytes);

  const std::vector<VisitIndex>& closed() const noexcept { return closed_; }
  const Visit& visit(VisitIndex index) const noexcept { return visits_[index]; }
  // Returns the open visit of the page that was entered last, kNoVisit if there is none.
  VisitIndex open_visit(Id page) const noexcept { return page < latest_of_page_.size() ? latest_of_page_[page] : kNoVisit; }
  std::size_t open() const noexcept { return open_; }
  std::int64_t size_bytes() const noexcept { return size_bytes_; }
  std::int64_t evicted() const noexcept { return evicted_; }
  std::int64_t unmatched_exits() const noexcept { return unmatched_exits_; }
  // Returns the largest number if no page is open.
  std::int64_t oldest_position() const noexcept;

 private:
  VisitIndex enter(Id page, Moment moment);
  void close(VisitIndex index);

  PageBounds bounds_;
  std::vector<Visit> visits_;
  std::vector<VisitIndex> free_, closed_;
  std::vector<VisitIndex> latest_of_page_;  // by page
  VisitIndex first_open_ = kNoVisit, last_open_ = kNoVisit;
  std::size_t open_ = 0;
  std::int64_t size_bytes_ = 0, fed_bytes_ = 0, evicted_ = 0, unmatched_exits_ = 0;
};

}  // namespace walle::stream

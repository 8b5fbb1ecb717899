#include "stream/page_sequence.h"

#include <limits>

namespace walle::stream {

PageSequence::VisitIndex PageSequence::enter(Id page, Moment moment) {
  VisitIndex index = static_cast<VisitIndex>(visits_.size());
  if (free_.empty()) {
    visits_.emplace_back();
  } else {
    index = free_.back();
    free_.pop_back();
  }
  if (page >= latest_of_page_.size()) latest_of_page_.resize(page + 1, kNoVisit);
  Visit& visit = visits_[index] = Visit();
  visit.entered = moment;
  visit.fed_before = fed_bytes_;
  visit.page = page;
  visit.enclosing = latest_of_page_[page];
  visit.previous_open = last_open_;
  (last_open_ == kNoVisit ? first_open_ : visits_[last_open_].next_open) = index;
  last_open_ = latest_of_page_[page] = index;
  ++open_;
  return index;
}

void PageSequence::close(VisitIndex index) {
  const Visit& visit = visits_[index];
  VisitIndex* link = &latest_of_page_[visit.page];
  while (*link != index) link = &visits_[*link].enclosing;
  *link = visit.enclosing;
  (visit.previous_open == kNoVisit ? first_open_ : visits_[visit.previous_open].next_open) = visit.next_open;
  (visit.next_open == kNoVisit ? last_open_ : visits_[visit.next_open].previous_open) = visit.previous_open;
  size_bytes_ -= visit.size_bytes;
  --open_;
  closed_.push_back(index);
}

PageSequence::VisitIndex PageSequence::feed(PageEvent kind, Id page, Moment moment, std::int64_t size_bytes) {
  free_.insert(free_.end(), closed_.begin(), closed_.end());
  closed_.clear();
  VisitIndex index = kNoVisit;
  if (kind == PageEvent::enter)
    index = enter(page, moment);
  else if (page < latest_of_page_.size())
    index = latest_of_page_[page];
  fed_bytes_ += size_bytes;
  if (index == kNoVisit) {
    unmatched_exits_ += kind == PageEvent::exit ? 1 : 0;
  } else {
    visits_[index].size_bytes += size_bytes;
    size_bytes_ += size_bytes;
    if (kind == PageEvent::exit) close(index);
  }
  while (first_open_ != kNoVisit) {
    const Visit& oldest = visits_[first_open_];
    const bool within = static_cast<std::int64_t>(open_) <= bounds_.max_open && size_bytes_ <= bounds_.max_bytes &&
                        moment.position - oldest.entered.position <= bounds_.max_span &&
                        fed_bytes_ - oldest.fed_before <= bounds_.max_span_bytes;
    if (within && (bounds_.max_age_ms == 0 || moment.ts_ms - oldest.entered.ts_ms <= bounds_.max_age_ms)) break;
    close(first_open_);
    ++evicted_;
  }
  return index;
}

std::int64_t PageSequence::oldest_position() const noexcept {
  return first_open_ == kNoVisit ? std::numeric_limits<std::int64_t>::max() : visits_[first_open_].entered.position;
}

}  // namespace walle::stream

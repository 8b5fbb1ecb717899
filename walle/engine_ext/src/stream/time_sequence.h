// Time-level sequence (§5.1): sizes, positions and times of the latest events, without the events.
#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>

#include "stream/condition.h"

namespace walle::stream {

struct TimeBounds {
  std::int64_t max_events = 1000;
  std::int64_t max_bytes = 1 << 20;
  std::int64_t max_age_ms = 0;  // age before the latest event; 0: no bound
};

class TimeSequence {
 public:
  explicit TimeSequence(TimeBounds bounds) : bounds_(bounds) {}
  // Appends an event and returns how many of the oldest were dropped, itself among them if it is larger than the bound.
  std::size_t append(Moment moment, std::int64_t size_bytes);

  std::size_t size() const noexcept { return entries_.size(); }
  std::int64_t size_bytes() const noexcept { return size_bytes_; }
  std::int64_t dropped() const noexcept { return dropped_; }
  // Returns the largest number if the sequence is empty.
  std::int64_t oldest_position() const noexcept;

 private:
  struct Entry {
    Moment moment;
    std::int64_t size_bytes;
  };

  TimeBounds bounds_;
  std::deque<Entry> entries_;
  std::int64_t size_bytes_ = 0, dropped_ = 0;
};

}  // namespace walle::stream

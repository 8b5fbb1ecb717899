#include "stream/time_sequence.h"

#include <limits>

namespace walle::stream {

std::size_t TimeSequence::append(Moment moment, std::int64_t size_bytes) {
  entries_.push_back({moment, size_bytes});
  size_bytes_ += size_bytes;
  std::size_t count = 0;
  while (!entries_.empty()) {
    const Entry& oldest = entries_.front();
    const bool within = static_cast<std::int64_t>(entries_.size()) <= bounds_.max_events && size_bytes_ <= bounds_.max_bytes;
    if (within && (bounds_.max_age_ms == 0 || moment.ts_ms - oldest.moment.ts_ms <= bounds_.max_age_ms)) break;
    size_bytes_ -= oldest.size_bytes;
    entries_.pop_front();
    ++count;
  }
  dropped_ += static_cast<std::int64_t>(count);
  return count;
}

std::int64_t TimeSequence::oldest_position() const noexcept {
  return entries_.empty() ? std::numeric_limits<std::int64_t>::max() : entries_.front().moment.position;
}

}  // namespace walle::stream

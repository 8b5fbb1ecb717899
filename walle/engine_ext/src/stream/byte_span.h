// Position at which the latest events of a stream begin whose bytes are within a bound.
#pragma once
#include <algorithm>
#include <cstdint>
#include <deque>
#include <limits>

namespace walle::stream {

// The position is exact to a 256th of the bound, for which the class keeps at most some 256 marks. Positions grow.
class ByteSpan {
 public:
  explicit ByteSpan(std::int64_t max_bytes) : max_bytes_(max_bytes), step_bytes_(std::max<std::int64_t>(max_bytes / 256, 1)) {}

  void add(std::int64_t position, std::int64_t size_bytes) {
    if (marks_.empty() || fed_bytes_ - marks_.back().fed_before >= step_bytes_) marks_.push_back({position, fed_bytes_});
    fed_bytes_ += size_bytes;
    while (marks_.size() > 1 && fed_bytes_ - marks_.front().fed_before > max_bytes_) marks_.pop_front();
  }

  // Returns the least number before the first event.
  std::int64_t start() const noexcept {
    return marks_.empty() ? std::numeric_limits<std::int64_t>::min() : marks_.front().position;
  }

 private:
  struct Mark {
    std::int64_t position, fed_before;  // bytes of all events before it
  };
  std::int64_t max_bytes_, step_bytes_, fed_bytes_ = 0;
  std::deque<Mark> marks_;
};

}  // namespace walle::stream

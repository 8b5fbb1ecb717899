// Reader of events in JSON: strict JSON (RFC 8259, UTF-8) straight into the bytes and columns of a batch.
//
// It accepts what `json.loads` accepts, apart from NaN and Infinity and integers of more than 64 bits. A lone surrogate, which
// plain data cannot hold, becomes U+FFFD. Of a key that occurs twice the last value counts, at the place of the first. The bytes
// are those that walle.base.plain.encode makes of the same value.
#pragma once
#include <memory>
#include <string_view>

#include "stream/event_batch.h"

namespace walle::stream {

inline constexpr int kMaxContentsDepth = 90;                           // walle.pipeline.events.event.MAX_CONTENTS_DEPTH
inline constexpr std::size_t kMaxEventBytes = std::size_t{256} << 10;  // MAX_EVENT_BYTES

// Reads events: a list of objects, or objects one after the other, as in JSON lines. Throws EventFault, which names the event by
// its number and the place of the fault by its byte.
std::shared_ptr<const EventBatch> read_json_events(std::string_view json);

}  // namespace walle::stream

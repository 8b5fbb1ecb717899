#include "bindings/stream/packed_size.h"

#include "bindings/stream/plain_walk.h"

namespace walle {

std::int64_t packed_size(PyObject* value) {
  constexpr int kMaxLevels = 90;  // walle.pipeline.events.event.MAX_CONTENTS_DEPTH: an event with more levels is refused
  PlainSize size;
  return PlainWalk(size).write(value, kMaxLevels) ? size.bytes() : -1;
}

}  // namespace walle

#include "vm/reply_queue.h"

#include <utility>

namespace walle::vm {

void ReplyQueue::push(Reply reply) {
  const std::lock_guard lock(mutex_);
  replies_.push_back(std::move(reply));
  if (replies_.size() == 1) wake_.set();  // else it is readable already
}

std::vector<Reply> ReplyQueue::take_all() {
  const std::lock_guard lock(mutex_);
  wake_.clear();
  return std::exchange(replies_, {});
}

}  // namespace walle::vm

#include "stream/trigger_trie.h"

namespace walle::stream {

bool TriggerTrie::add(const Condition& condition, Id task) {
  if (!(condition.skip_till_next ? skipping_.add(condition, task) : consecutive_.add(condition, task, event_ + 1))) return false;
  ++size_;
  return true;
}

bool TriggerTrie::remove(const Condition& condition, Id task) {
  if (!(condition.skip_till_next ? skipping_.remove(condition, task) : consecutive_.remove(condition, task))) return false;
  --size_;
  return true;
}

}  // namespace walle::stream

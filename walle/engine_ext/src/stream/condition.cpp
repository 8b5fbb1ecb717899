#include "stream/condition.h"

#include <algorithm>

namespace walle::stream {

namespace {

bool is_optional(const Condition& condition, std::size_t k) { return (condition.optional >> k & 1) != 0; }

}  // namespace

std::vector<std::vector<Id>> sequences_of(const Condition& condition) {
  std::vector<std::vector<Id>> found(1);
  for (std::size_t k = 0; k < condition.trigger_ids.size(); ++k) {
    std::vector<std::vector<Id>> longer = found;
    for (std::vector<Id>& ids : longer) ids.push_back(condition.trigger_ids[k]);
    if (!is_optional(condition, k)) {
      found = std::move(longer);
      continue;
    }
    for (std::vector<Id>& ids : longer)
      if (std::find(found.begin(), found.end(), ids) == found.end()) found.push_back(std::move(ids));
    if (found.size() > kMaxSequences) return {};
  }
  return found;
}

std::vector<Id> required_ids(const Condition& condition) {
  std::vector<Id> ids;
  for (std::size_t k = 0; k < condition.trigger_ids.size(); ++k)
    if (!is_optional(condition, k)) ids.push_back(condition.trigger_ids[k]);
  return ids;
}

}  // namespace walle::stream

#include "graph/open.h"

#include <sys/stat.h>

#include <array>
#include <map>
#include <mutex>

#include "core/fork_mutex.h"
#include "graph/load.h"

namespace walle {

namespace {

using FileId = std::array<std::int64_t, 6>;

FileId file_id(const struct stat& status) {
  return {static_cast<std::int64_t>(status.st_dev),          static_cast<std::int64_t>(status.st_ino),
          static_cast<std::int64_t>(status.st_size),         static_cast<std::int64_t>(status.st_mtim.tv_sec),
          static_cast<std::int64_t>(status.st_mtim.tv_nsec), static_cast<std::int64_t>(status.st_ctim.tv_nsec)};
}

}  // namespace

std::shared_ptr<const Graph> open_graph(const std::string& path) {
  // Never destroyed: threads may load models while the process exits.
  static ForkMutex& mutex = *new ForkMutex;
  static auto& open = *new std::map<FileId, std::weak_ptr<const Graph>>;
  struct stat status{};
  if (::stat(path.c_str(), &status) != 0) return load_graph(path);  // load_graph says why it cannot be read
  const FileId id = file_id(status);
  {
    const std::lock_guard lock(mutex);
    if (const auto found = open.find(id); found != open.end())
      if (auto graph = found->second.lock()) return graph;
  }
  auto graph = load_graph(path);  // unlocked: the checksum of a large file takes long
  const std::lock_guard lock(mutex);
  std::erase_if(open, [](const auto& item) { return item.second.expired(); });
  auto& entry = open[id];
  if (auto other = entry.lock()) return other;
  entry = graph;
  return graph;
}

}  // namespace walle

// Target of a session or module: a backend, given or left to search, and a number of threads.
#pragma once
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "core/team.h"
#include "kernels/table.h"

namespace walle {

// For a node, the algorithm and its parameter to take instead of the cheapest: to measure how well search chooses.
using Forced = std::map<std::string, std::pair<std::string, std::int64_t>, std::less<>>;

struct Target {
  const Table* table = &kernels();
  bool searched = false;  // each plan may take the backend on which it costs least (eq. 2)
  int threads = 1;
  Forced forced = {};

  // Throws Error (backend) for a name that is unknown or that this CPU lacks, and for a number of threads outside [1, 256].
  static Target of(std::string_view backend, int threads) {
    if (threads < 1 || threads > 256)
      throw Error(ErrorKind::backend, "threads=" + std::to_string(threads) + ": 1 to 256 are supported");
    return {&kernels(backend), backend == "auto" && !forced_backend(), threads};
  }
};

}  // namespace walle

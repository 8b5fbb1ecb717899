#include "run/target.h"

#include "host/host_device.h"
#include "kernels/table.h"

namespace walle {

Target find_target(std::string_view backend, int threads) {
  if (threads < 1 || threads > 256)
    throw Error(ErrorKind::backend, "threads=" + std::to_string(threads) + ": 1 to 256 are supported");
  return {&host_kernels(backend), backend == "auto" && !forced_instruction_set(), threads};
}

}  // namespace walle

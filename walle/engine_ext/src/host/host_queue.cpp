#include "host/host_queue.h"

#include <algorithm>
#include <chrono>

#include "atomic/atomic.h"
#include "core/fault.h"
#include "core/stop.h"
#include "core/team.h"

namespace walle {

namespace {

class HostQueue final : public Queue {
 public:
  explicit HostQueue(int threads) : team_(threads) {}

  std::optional<CommandFault> run(const CommandList& list, std::span<const BufferHandle> buffers, double* us) override {
    addresses_.resize(std::max(addresses_.size(), list.max_inputs));
    return run_commands(list, buffers.data(), current_stop(), us);
  }

 private:
  std::optional<CommandFault> run_commands(const CommandList& list, const BufferHandle* buffers, StopFlag* stop,
                                           double* us) noexcept {
    using Clock = std::chrono::steady_clock;
    const auto address = [&](const Place& place) {
      return host_address(buffers[static_cast<std::size_t>(place.buffer)]) + place.offset;
    };
    std::byte* scratch = address(list.scratch);
    std::byte** inputs = addresses_.data();
    const FaultScope faults;
    Clock::time_point begin = us != nullptr ? Clock::now() : Clock::time_point();
    for (const Command& command : list.commands) {
      if (stop != nullptr && stop->poll()) return std::nullopt;
      for (std::size_t i = 0; i < command.inputs.size(); ++i)
        inputs[i] = command.inputs[i].buffer < 0 ? nullptr : address(command.inputs[i]);
      static_cast<const HostStep&>(*command.step).run_by(team_, inputs, address(command.output), scratch);
      if (const char* what = faults.what()) return CommandFault{static_cast<std::size_t>(&command - list.commands.data()), what};
      if (us == nullptr) continue;
      const Clock::time_point end = Clock::now();
      *us++ = std::chrono::duration<double, std::micro>(end - begin).count();
      begin = end;
    }
    return std::nullopt;
  }

  Team team_;
  std::vector<std::byte*> addresses_;  // addresses of the inputs of the command that runs
};

}  // namespace

std::unique_ptr<Queue> make_host_queue(int threads) { return std::make_unique<HostQueue>(threads); }

}  // namespace walle

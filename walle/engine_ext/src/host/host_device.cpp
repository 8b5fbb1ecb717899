#include "host/host_device.h"

#include <cstring>
#include <vector>

#include "core/tensor.h"
#include "host/host_kernels.h"
#include "host/host_queue.h"

namespace walle {

namespace {

// The kernel sets of the instruction sets that the CPU has, in ascending order of preference.
struct KernelSets {
  std::vector<HostKernels> available;
  std::vector<const KernelSet*> searched;  // those of float32 precision; the scalar set only where it is alone

  KernelSets() {
    available.reserve(instruction_sets().size());
    for (const InstructionSet& set : instruction_sets()) {
      if (!set.available) continue;
      available.emplace_back(kernels(set.name));
      if (set.exact) searched.push_back(&available.back());
    }
    // Scalar kernels never cost least beside vectors: weighing them took a third of search.
    if (searched.size() > 1) searched.erase(searched.begin());
  }
};

// Not destroyed when the process exits: a thread that Python does not wait for may still run then.
const KernelSets& kernel_sets_of_cpu() {
  static const KernelSets& sets = *new KernelSets;
  return sets;
}

class HostDevice final : public Device {
 public:
  HostDevice() noexcept : Device(true) {}

  std::size_t alignment() const noexcept override { return Storage::kAlignment; }
  Buffer allocate(std::size_t size_bytes) const override {
    auto storage = Storage::allocate(size_bytes);
    const BufferHandle handle = host_handle(storage->data());
    return {std::move(storage), handle, size_bytes};
  }
  void write(const Buffer& to, std::size_t offset, std::span<const std::byte> from) const override {
    if (!from.empty()) std::memcpy(host_address(to.handle) + offset, from.data(), from.size());
  }
  void read(const Buffer& from, std::size_t offset, std::span<std::byte> to) const override {
    if (!to.empty()) std::memcpy(to.data(), host_address(from.handle) + offset, to.size());
  }
  void copy(const Buffer& from, std::size_t from_offset, const Buffer& to, std::size_t to_offset,
            std::size_t size_bytes) const override {
    std::memmove(host_address(to.handle) + to_offset, host_address(from.handle) + from_offset, size_bytes);
  }
  std::unique_ptr<Queue> make_queue(int threads) const override { return make_host_queue(threads); }
  std::span<const KernelSet* const> kernel_sets() const override { return kernel_sets_of_cpu().searched; }
};

}  // namespace

const Device& host_device() noexcept {
  static const HostDevice& device = *new HostDevice;  // never destroyed, like the kernel sets
  return device;
}

const KernelSet& host_kernels(std::string_view instruction_set) {
  const Table& table = kernels(instruction_set);
  for (const HostKernels& set : kernel_sets_of_cpu().available)
    if (&set.host_table() == &table) return set;
  throw Error(ErrorKind::backend, "no kernels of " + std::string(table.name));  // kernels() refused it before
}

}  // namespace walle

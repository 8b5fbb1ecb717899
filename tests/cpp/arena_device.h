// A second device for tests: its memory has no address on the host, and its kernels know Add, MatMul and the raster of float32.
#pragma once
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "core/stop.h"
#include "core/tensor.h"
#include "kernels/table.h"
#include "plan/kernel_set.h"

namespace check {

using namespace walle;

class ArenaDevice;

// A step of the device: reads and writes float32 elements of buffers through it.
class ArenaStep : public Step {
 public:
  // An operand, or a part of the scratch memory.
  struct Operand {
    const ArenaDevice& device;
    BufferHandle buffer;
    std::int64_t offset;
    float load(std::int64_t element) const;
    void store(std::int64_t element, float number) const;
  };
  // Returns what is wrong with a value, or null.
  virtual const char* run(std::span<const Operand> inputs, const Operand& output) const = 0;
};

class ArenaKernels final : public KernelSet {
 public:
  explicit ArenaKernels(const Device& device) : device_(device) {}
  std::string_view name() const noexcept override { return "arena"; }
  const Device& device() const noexcept override { return device_; }
  const Table& host_table() const noexcept override { return kernels(); }
  bool has_composite(const OpDef&, std::span<const walle::Operand>, const Attributes&, int) const override { return false; }
  void fuse(Program&) const override {}
  bool can_run(const Program&) const override { return true; }
  std::unique_ptr<const PrimitiveSelection> select(const Program& program, const Forced&) const override {
    auto selection = std::make_unique<PrimitiveSelection>();
    selection->us = static_cast<double>(program.ops.size());
    selection->source = "count of ops";
    return selection;
  }
  void apply(Program&, const PrimitiveSelection&, PackedWeights&) const override {}
  std::vector<double> predict_rasters(const Program& program) const override {
    return std::vector<double>(program.ops.size(), 1);
  }
  std::shared_ptr<const Step> make_step(const ProgramOp& op, std::span<const Layout> inputs,
                                        const TensorType& result) const override;

 private:
  const Device& device_;
};

class ArenaDevice final : public Device {
 public:
  explicit ArenaDevice(std::size_t capacity) : Device(false), capacity_(capacity) {}

  std::size_t alignment() const noexcept override { return 256; }
  Buffer allocate(std::size_t size_bytes) const override {
    const std::lock_guard lock(mutex_);
    if (live_bytes_ + size_bytes > capacity_) throw OutOfMemory("the arena has no " + std::to_string(size_bytes) + " bytes");
    const BufferHandle handle{++last_};
    buffers_[handle].resize(size_bytes);
    live_bytes_ += size_bytes;
    ++allocations_;
    return {std::shared_ptr<const void>(this, [this, handle](const void*) { free(handle); }), handle, size_bytes};
  }
  void write(const Buffer& to, std::size_t offset, std::span<const std::byte> from) const override {
    std::copy(from.begin(), from.end(), stretch(to.handle, offset, from.size()));
    written_bytes_ += from.size();
  }
  void read(const Buffer& from, std::size_t offset, std::span<std::byte> to) const override {
    std::copy_n(stretch(from.handle, offset, to.size()), to.size(), to.begin());
    read_bytes_ += to.size();
  }
  void copy(const Buffer& from, std::size_t from_offset, const Buffer& to, std::size_t to_offset,
            std::size_t size_bytes) const override {
    std::copy_n(stretch(from.handle, from_offset, size_bytes), size_bytes, stretch(to.handle, to_offset, size_bytes));
  }
  std::unique_ptr<Queue> make_queue(int threads) const override;
  std::span<const KernelSet* const> kernel_sets() const override { return {&kernel_set_, 1}; }

  // The memory of a buffer from `offset` on; throws Error (model) outside the buffer.
  std::byte* stretch(BufferHandle buffer, std::size_t offset, std::size_t size_bytes) const {
    const std::lock_guard lock(mutex_);
    const auto found = buffers_.find(buffer);
    if (found == buffers_.end() || offset > found->second.size() || size_bytes > found->second.size() - offset)
      throw Error(ErrorKind::model, "no such memory in the arena");
    return found->second.data() + offset;
  }
  std::size_t live_bytes() const { return live_bytes_; }
  std::size_t allocations() const { return allocations_; }
  std::size_t written_bytes() const { return written_bytes_; }
  std::size_t read_bytes() const { return read_bytes_; }
  std::size_t commands() const { return commands_; }

 private:
  friend class ArenaQueue;
  void free(BufferHandle handle) const {
    const std::lock_guard lock(mutex_);
    live_bytes_ -= buffers_.at(handle).size();
    buffers_.erase(handle);
  }

  const std::size_t capacity_;
  const ArenaKernels kernels_{*this};
  const KernelSet* const kernel_set_ = &kernels_;
  mutable std::mutex mutex_;
  mutable std::map<BufferHandle, std::vector<std::byte>> buffers_;
  mutable std::uintptr_t last_ = 0;
  mutable std::size_t live_bytes_ = 0, allocations_ = 0, written_bytes_ = 0, read_bytes_ = 0, commands_ = 0;
};

inline float ArenaStep::Operand::load(std::int64_t element) const {
  float number;
  std::memcpy(&number, device.stretch(buffer, static_cast<std::size_t>(offset + 4 * element), 4), 4);
  return number;
}

inline void ArenaStep::Operand::store(std::int64_t element, float number) const {
  std::memcpy(device.stretch(buffer, static_cast<std::size_t>(offset + 4 * element), 4), &number, 4);
}

class ArenaQueue final : public Queue {
 public:
  explicit ArenaQueue(const ArenaDevice& device) : device_(device) {}
  std::optional<CommandFault> run(const CommandList& list, std::span<const BufferHandle> buffers, double* us) override {
    const auto operand = [&](const Place& place) {
      return ArenaStep::Operand{device_, buffers[static_cast<std::size_t>(place.buffer)], place.offset};
    };
    for (std::size_t i = 0; i < list.commands.size(); ++i) {
      if (StopFlag* stop = current_stop(); stop != nullptr && stop->poll()) return std::nullopt;
      const Command& command = list.commands[i];
      std::vector<ArenaStep::Operand> inputs;
      for (const Place& input : command.inputs) inputs.push_back(operand(input));
      ++device_.commands_;
      if (us != nullptr) us[i] = 1;
      if (const char* what = static_cast<const ArenaStep&>(*command.step).run(inputs, operand(command.output)))
        return CommandFault{i, what};
    }
    return std::nullopt;
  }

 private:
  const ArenaDevice& device_;
};

inline std::unique_ptr<Queue> ArenaDevice::make_queue(int) const { return std::make_unique<ArenaQueue>(*this); }

// Operands of equal shapes.
class ArenaAdd final : public ArenaStep {
 public:
  explicit ArenaAdd(std::int64_t count) : count_(count) {}
  const char* run(std::span<const Operand> inputs, const Operand& output) const override {
    for (std::int64_t i = 0; i < count_; ++i) output.store(i, inputs[0].load(i) + inputs[1].load(i));
    return nullptr;
  }

 private:
  std::int64_t count_;
};

// Matrices; an infinite element of the first is refused, so that tests see a fault.
class ArenaMatMul final : public ArenaStep {
 public:
  ArenaMatMul(const Dims& a, const Dims& b) : rows_(a[0]), depth_(a[1]), columns_(b[1]) {}
  std::string_view algorithm() const noexcept override { return "loops"; }
  std::size_t scratch_bytes(int threads) const noexcept override { return 64; }
  const char* run(std::span<const Operand> inputs, const Operand& output) const override {
    for (std::int64_t row = 0; row < rows_; ++row)
      for (std::int64_t column = 0; column < columns_; ++column) {
        float sum = 0;
        for (std::int64_t k = 0; k < depth_; ++k) {
          const float a = inputs[0].load(row * depth_ + k);
          if (a - a != 0) return "an infinite number";
          sum += a * inputs[1].load(k * columns_ + column);
        }
        output.store(row * columns_ + column, sum);
      }
    return nullptr;
  }

 private:
  std::int64_t rows_, depth_, columns_;
};

class ArenaRaster final : public ArenaStep {
 public:
  explicit ArenaRaster(std::vector<Region> regions) : regions_(std::move(regions)) {}
  const char* run(std::span<const Operand> inputs, const Operand& output) const override {
    for (const Region& region : regions_) {
      const Operand& source = inputs[static_cast<std::size_t>(region.source)];
      for (std::int64_t i = 0; i < region.count(); ++i) {
        std::int64_t from = region.src.offset, to = region.dst.offset, rest = i;
        for (int axis = region.axes; axis-- > 0;) {
          const auto at = static_cast<std::size_t>(axis);
          from += rest % region.size[at] * region.src.stride[at];
          to += rest % region.size[at] * region.dst.stride[at];
          rest /= region.size[at];
        }
        output.store(to, source.load(from));
      }
    }
    return nullptr;
  }

 private:
  std::vector<Region> regions_;
};

inline std::shared_ptr<const Step> ArenaKernels::make_step(const ProgramOp& op, std::span<const Layout> inputs,
                                                           const TensorType& result) const {
  if (result.dtype == DType::f32) {
    if (op.is_raster()) return std::make_shared<ArenaRaster>(op.regions);
    if (op.op->name == "Add" && inputs[0].shape == inputs[1].shape)
      return std::make_shared<ArenaAdd>(element_count(result.shape));
    if (op.op->name == "MatMul" && inputs[0].shape.size() == 2 && inputs[1].shape.size() == 2)
      return std::make_shared<ArenaMatMul>(inputs[0].shape, inputs[1].shape);
  }
  throw Error(ErrorKind::unsupported, op.title() + ": the arena has no kernel for it");
}

}  // namespace check

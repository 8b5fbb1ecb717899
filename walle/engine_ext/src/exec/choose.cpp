// Layouts and algorithms over a whole program. A value is kept plain, packed (its channels in blocks of the backend's `pack`), or
// both where both are read; rasters change between the two, and are merged with the rasters around them.
#include <algorithm>
#include <chrono>
#include <limits>
#include <optional>

#include "atomic/packed_convolution.h"
#include "atomic/packed_linear.h"
#include "atomic/packed_pooling.h"
#include "exec/program.h"
#include "exec/rates.h"

namespace walle {

namespace {

std::size_t at(int index) { return static_cast<std::size_t>(index); }

// [batch, channels, spatial...] seen as batch x channels planes of `plane` elements.
struct Planes {
  std::int64_t batch, channels, plane;

  explicit Planes(const Dims& shape) : batch(shape[0]), channels(shape[1]), plane(1) {
    for (std::size_t i = 2; i < shape.size(); ++i) plane *= shape[i];
  }
};

// All of them, the cheapest first.
std::vector<Candidate> candidates_of(const PackedConv& conv, const Rates& rates) {
  std::vector<Candidate> candidates;
  for (const PackedAlgorithm* algorithm : packed_algorithms())
    for (const std::int64_t parameter : algorithm->parameters(conv))
      candidates.push_back({algorithm->name, parameter, rates.us(algorithm->work(conv, parameter))});
  std::stable_sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) { return a.us < b.us; });
  return candidates;
}

// Few channels are read where they lie: blocks of them would be mostly padding.
bool reads_plain(const PackedConv& conv) { return conv.shape.groups == 1 && conv.shape.in_channels * 2 <= conv.pack(); }

const PackedAlgorithm* named(std::string_view name) {
  const auto all = packed_algorithms();
  return *std::find_if(all.begin(), all.end(), [&](const PackedAlgorithm* algorithm) { return algorithm->name == name; });
}

using Clock = std::chrono::steady_clock;

class Choosing {
 public:
  Choosing(Program& program, const Table& table, PackedWeights& weights)
      : program_(program),
        table_(table),
        weights_(weights),
        rates_(rates(table)),
        packed_(program.values.size(), -1),
        plain_(program.values.size(), true) {}

  // Returns the milliseconds of the search.
  double run() {
    std::vector<ProgramOp> ops = std::move(program_.ops);
    program_.ops.clear();
    for (ProgramOp& op : ops) {
      if (choose_conv(op) || follow(op)) continue;
      for (const int input : op.inputs)
        if (input >= 0) need_plain(input);
      choose_linear(op);
      program_.ops.push_back(std::move(op));
    }
    for (const int output : program_.outputs) need_plain(output);
    return searched_ms_;
  }

 private:
  // Copied where values are added meanwhile: references into the list would dangle.
  const ProgramValue& value(int index) const { return program_.values[at(index)]; }
  std::int64_t pack() const { return table_.pack; }
  std::int64_t blocks_of(std::int64_t channels) const { return (channels + pack() - 1) / pack(); }

  int add_value(Dims shape) {
    program_.values.push_back({DType::f32, std::move(shape), {}, -1});
    packed_.push_back(-1);
    plain_.push_back(true);
    return static_cast<int>(program_.values.size() - 1);
  }
  int add_constant(Tensor tensor) {
    const int index = add_value(tensor.shape());
    program_.values[at(index)].dtype = tensor.dtype();
    program_.values[at(index)].constant = std::move(tensor);
    return index;
  }

  Dims packed_shape(const Dims& shape) const {
    Dims result = shape;
    result[1] = blocks_of(shape[1]);
    result.push_back(pack());
    return result;
  }

  // Declares that `plain` will be given in its packed form alone.
  int packed_result(int plain) {
    const int index = add_value(packed_shape(value(plain).shape));
    packed_[at(plain)] = index;
    plain_[at(plain)] = false;
    return index;
  }
  bool only_packed(int index) const { return index >= 0 && packed_[at(index)] >= 0 && !plain_[at(index)]; }

  // The regions between a plain value and its packed form.
  std::vector<Region> layout_regions(const Dims& shape, bool to_packed) const {
    const Planes planes(shape);
    const std::int64_t full = planes.channels / pack(), rest = planes.channels % pack();
    const std::int64_t plain_extent = planes.batch * planes.channels * planes.plane;
    const std::int64_t packed_extent = planes.batch * blocks_of(planes.channels) * planes.plane * pack();
    std::vector<Region> regions;
    const auto add = [&](std::int64_t first, std::int64_t count, std::int64_t lanes) {
      const Dims size{planes.batch, count, planes.plane, lanes};
      const Dims plain{planes.channels * planes.plane, pack() * planes.plane, 1, planes.plane};
      const Dims packed{blocks_of(planes.channels) * planes.plane * pack(), planes.plane * pack(), pack(), 1};
      const std::int64_t offset = first * pack() * planes.plane;  // the same in both
      regions.push_back(to_packed ? Region::make(0, size, plain, offset, packed, offset, plain_extent, packed_extent)
                                  : Region::make(0, size, packed, offset, plain, offset, packed_extent, plain_extent));
    };
    if (full > 0) add(0, full, pack());
    if (rest > 0) add(full, 1, rest);
    return regions;
  }

  void add_raster(int from, int to, std::vector<Region> regions, std::string name) {
    ProgramOp raster;
    raster.name = std::move(name);
    raster.inputs = {from};
    raster.output = to;
    raster.regions = std::move(regions);
    program_.ops.push_back(std::move(raster));
    ++program_.rasters_made;
  }

  void need_plain(int index) {
    if (plain_[at(index)]) return;
    add_raster(packed_[at(index)], index, layout_regions(value(index).shape, false), "unpack");
    plain_[at(index)] = true;
  }
  int need_packed(int index) {
    if (packed_[at(index)] < 0) {
      const Dims shape = value(index).shape;
      const int result = add_value(packed_shape(shape));
      packed_[at(index)] = result;
      add_raster(index, result, layout_regions(shape, true), "pack");
    }
    return packed_[at(index)];
  }

  // A bias in whole blocks, so that kernels read whole vectors.
  int padded_bias(int index, std::int64_t groups) {
    if (index < 0) return -1;
    const Tensor& bias = value(index).constant;
    const std::int64_t channels = bias.size() / groups, width = blocks_of(channels) * pack();
    if (bias.size() % pack() == 0 && channels * groups == width * groups) return index;
    Tensor padded = Tensor::empty(DType::f32, {groups * width});
    std::fill_n(padded.data<float>(), groups * width, 0.0f);
    for (std::int64_t g = 0; g < groups; ++g)
      std::copy_n(bias.data<float>() + g * channels, channels, padded.data<float>() + g * width);
    return add_constant(std::move(padded));
  }

  bool choose_conv(ProgramOp& op) {
    if (op.is_raster() || op.op->name != "Conv" || value(op.output).dtype != DType::f32) return false;
    op.inputs.resize(4, -1);
    const int x = op.inputs[0], w = op.inputs[1], bias = op.inputs[2], residual = op.inputs[3];
    const Dims x_shape = value(x).shape, w_shape = value(w).shape;
    if (!value(w).is_constant() || (bias >= 0 && !value(bias).is_constant())) return false;
    if (!op.attributes.get_string("algorithm", "").empty()) return false;
    PackedConv conv{conv_shape(x_shape, w_shape, DType::f32, op.attributes), &table_, packed_[at(x)] < 0};
    conv.plain_input = conv.plain_input && reads_plain(conv);
    const auto searching = Clock::now();
    const std::vector<Candidate> candidates = candidates_of(conv, rates_);
    searched_ms_ += std::chrono::duration<double, std::milli>(Clock::now() - searching).count();
    if (candidates.empty()) return false;
    const PackedAlgorithm* best = named(candidates.front().algorithm);
    const std::int64_t parameter = candidates.front().parameter;

    std::string activation = op.attributes.get_string("activation", "");
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    auto low = static_cast<float>(op.attributes.get_float("low", -kInfinity));
    auto high = static_cast<float>(op.attributes.get_float("high", kInfinity));
    if (activation == "Relu") {
      low = std::max(low, 0.0f);
      high = std::max(high, 0.0f);
      activation.clear();
    }
    const Tensor& weights = value(w).constant;
    const Tensor packed =
        weights_.get(weights, key(*best, parameter, conv), [&] { return best->pack(conv, parameter, weights.data<float>()); });

    ProgramOp made;
    made.name = op.name;
    made.op = op.op;
    made.inputs = {conv.plain_input ? x : need_packed(x), add_constant(packed),
                   padded_bias(bias, best == &kPackedDepthwise ? 1 : conv.shape.groups),
                   residual < 0 ? -1 : need_packed(residual)};
    if (conv.plain_input) need_plain(x);
    made.step = best->make(conv, parameter, low, high);
    made.predicted_us = candidates.front().us;
    made.candidates = candidates;
    made.output = packed_result(op.output);
    program_.ops.push_back(std::move(made));
    if (!activation.empty()) {
      ProgramOp last;
      last.name = op.name;
      last.op = find_operator(activation);
      last.inputs = {packed_[at(op.output)]};
      last.output = packed_result(op.output);
      program_.ops.push_back(std::move(last));
    }
    return true;
  }

  // What the order of packed weights hangs on, beside their shape.
  std::string key(const PackedAlgorithm& algorithm, std::int64_t parameter, const PackedConv& conv) const {
    return std::string(table_.name) + ' ' + std::string(algorithm.name) + ' ' + std::to_string(parameter) +
           (conv.plain_input ? " plain " : " ") + std::to_string(conv.shape.groups);
  }

  void choose_linear(ProgramOp& op) {
    if (op.is_raster() || op.op->name != "Linear" || !value(op.inputs[1]).is_constant()) return;
    const Tensor& w = value(op.inputs[1]).constant;
    const std::int64_t depth = w.shape()[0], columns = w.shape()[1];
    const std::int64_t rows = columns == 0 ? 0 : element_count(value(op.output).shape) / columns;
    op.candidates = {{"packed", 0, rates_.us(packed_linear_work(rows, depth, columns, table_, false))}};
    if (table_.bf16.panel != nullptr) {
      op.candidates.push_back({"packed bf16", 0, rates_.us(packed_linear_work(rows, depth, columns, table_, true))});
      if (op.candidates[1].us < op.candidates[0].us) std::swap(op.candidates[0], op.candidates[1]);
    }
    op.predicted_us = op.candidates.front().us;
    const bool pairs = op.candidates.front().algorithm == "packed bf16";
    const Tensor packed = weights_.get(w, std::string(table_.name) + (pairs ? " linear bf16" : " linear"), [&] {
      if (pairs) return pack_linear_pairs(w.data<float>(), depth, columns, table_);
      Tensor made =
          Tensor::empty(DType::f32, {static_cast<std::int64_t>(packed_linear_bytes(depth, columns, table_) / sizeof(float))});
      pack_linear(w.data<float>(), columns, 1, depth, columns, table_, made.data<float>());
      return made;
    });
    std::vector<Layout> inputs;
    for (const int input : op.inputs)
      inputs.push_back(input < 0
                           ? Layout{DType::f32, {}, {}, nullptr, true}
                           : Layout{DType::f32, value(input).shape, contiguous_strides(value(input).shape), nullptr, false});
    op.step = (pairs ? make_packed_linear_pairs
                     : make_packed_linear)({inputs, {DType::f32, value(op.output).shape}, op.attributes, table_});
    op.inputs[1] = add_constant(packed);
  }

  // Whether the op was made to read and write packed values, because what it reads is there in that form alone.
  bool follow(ProgramOp& op) {
    const bool any = std::any_of(op.inputs.begin(), op.inputs.end(), [&](int input) { return only_packed(input); });
    if (!any || value(op.output).dtype != DType::f32) return false;
    if (op.is_raster()) return follow_raster(op);
    if (op.op->name == "PoolMax" || op.op->name == "PoolMean" || op.op->name == "PoolSum") return follow_pool(op);
    switch (op.op->family) {
      case Family::unary: return follow_elementwise(op);
      case Family::binary: return follow_elementwise(op);
      case Family::reduce:
      case Family::mean: return follow_reduction(op);
      default: return false;
    }
  }

  bool follow_pool(ProgramOp& op) {
    ProgramOp made = op;
    made.step = make_packed_pool(op.op->name, value(op.inputs[0]).shape, op.attributes, table_);
    made.inputs = {packed_[at(op.inputs[0])]};
    made.output = packed_result(op.output);
    program_.ops.push_back(std::move(made));
    return true;
  }

  bool follow_elementwise(ProgramOp& op) {
    const Dims shape = value(op.output).shape;
    std::vector<int> inputs;
    if (shape.size() < 2) return false;
    for (const int input : op.inputs)
      if (!can_follow(input, shape)) return false;
    for (const int input : op.inputs) inputs.push_back(follower(input, shape));
    ProgramOp made = op;
    made.inputs = std::move(inputs);
    made.output = packed_result(op.output);
    program_.ops.push_back(std::move(made));
    return true;
  }

  // A constant that has one number for each channel, or one in all.
  static bool by_channel(const ProgramValue& constant, const Dims& shape) {
    if (element_count(constant.shape) == 1) return true;
    const std::size_t rank = constant.shape.size();
    for (std::size_t i = 0; i < rank; ++i)
      if (constant.shape[i] != (i + shape.size() - rank == 1 ? shape[1] : 1)) return false;
    return rank + 1 >= shape.size();
  }
  bool can_follow(int input, const Dims& shape) const {
    const ProgramValue& given = value(input);
    if (given.is_constant()) return by_channel(given, shape);
    return given.shape.size() == shape.size() && given.shape[1] == shape[1];
  }
  int follower(int input, const Dims& shape) {
    const ProgramValue given = value(input);
    if (!given.is_constant()) return need_packed(input);
    if (element_count(given.shape) == 1) {
      Tensor one = Tensor::empty(DType::f32, {});
      *one.data<float>() = *given.constant.data<float>();
      return add_constant(std::move(one));
    }
    Dims dims = packed_shape(shape);
    for (std::size_t i = 0; i + 1 < dims.size(); ++i)
      if (i != 1) dims[i] = 1;
    Tensor spread = Tensor::empty(DType::f32, dims);
    std::fill_n(spread.data<float>(), element_count(dims), 1.0f);
    std::copy_n(given.constant.data<float>(), shape[1], spread.data<float>());
    return add_constant(std::move(spread));
  }

  // Over all spatial axes, which stay with size 1.
  bool follow_reduction(ProgramOp& op) {
    const Dims from = value(op.inputs[0]).shape, to = value(op.output).shape;
    if (from.size() < 3 || op.axes.size() != from.size() - 2 || op.axes.front() != 2 || to.size() != from.size()) return false;
    ProgramOp made = op;
    made.inputs = {packed_[at(op.inputs[0])]};
    made.output = packed_result(op.output);
    program_.ops.push_back(std::move(made));
    return true;
  }

  // A raster that moves whole planes of channels, or the same way within every plane.
  bool follow_raster(ProgramOp& op) {
    const Dims to = value(op.output).shape;
    if (to.size() < 3 || element_count(to) == 0) return false;
    for (const int input : op.inputs)
      if (value(input).shape.size() != to.size() && element_count(value(input).shape) != 1) return false;
    auto regions = whole_planes(op, to);
    if (!regions) regions = within_planes(op, to);
    if (!regions) return false;
    ProgramOp made = op;
    for (int& input : made.inputs)
      if (element_count(value(input).shape) != 1 || only_packed(input)) input = need_packed(input);
    made.regions = std::move(*regions);
    made.output = packed_result(op.output);
    program_.ops.push_back(std::move(made));
    return true;
  }

  std::int64_t packed_extent(int index) const { return element_count(packed_shape(value(index).shape)); }

  struct Channel {
    int source = -1;
    std::int64_t channel = 0;
    bool operator==(const Channel&) const = default;
  };

  // For each channel of the result, where it comes from; nothing where planes are not moved whole, or between images.
  std::optional<std::vector<Channel>> channels_of(const ProgramOp& op, const Dims& shape) const {
    const Planes to(shape);
    std::vector<Channel> channels(static_cast<std::size_t>(to.channels));
    for (const Region& region : op.regions) {
      const Dims& source = value(op.inputs[at(region.source)]).shape;
      if (source.size() < 3) return std::nullopt;
      const Planes from(source);
      if (from.plane != to.plane || from.batch != to.batch || region.axes == 0) return std::nullopt;
      const auto last = static_cast<std::size_t>(region.axes - 1);
      const std::int64_t size = region.size[last];
      const bool dense = to.plane == 1 || (region.src.stride[last] == 1 && region.dst.stride[last] == 1 && size % to.plane == 0);
      if (!dense || region.src.offset % to.plane != 0 || region.dst.offset % to.plane != 0) return std::nullopt;
      for (std::size_t i = 0; i < last; ++i)
        if (region.src.stride[i] % to.plane != 0 || region.dst.stride[i] % to.plane != 0) return std::nullopt;
      std::array<std::int64_t, kMaxAxes> place{};
      const std::int64_t run = to.plane == 1 ? 1 : size / to.plane;
      const std::size_t outer = to.plane == 1 ? last + 1 : last;
      for (;;) {
        std::int64_t src = region.src.offset, dst = region.dst.offset;
        for (std::size_t i = 0; i < outer; ++i) {
          src += place[i] * region.src.stride[i];
          dst += place[i] * region.dst.stride[i];
        }
        for (std::int64_t p = 0; p < run; ++p) {
          const std::int64_t src_plane = src / to.plane + p, dst_plane = dst / to.plane + p;
          if (src_plane / from.channels != dst_plane / to.channels) return std::nullopt;
          const Channel given{region.source, src_plane % from.channels};
          Channel& channel = channels[static_cast<std::size_t>(dst_plane % to.channels)];
          if (channel.source >= 0 && channel != given) return std::nullopt;  // images are permuted differently
          channel = given;
        }
        std::size_t axis = outer;
        while (axis-- > 0 && ++place[axis] == region.size[axis]) place[axis] = 0;
        if (axis == static_cast<std::size_t>(-1)) break;
      }
    }
    for (const Channel& channel : channels)
      if (channel.source < 0) return std::nullopt;
    return channels;
  }

  std::optional<std::vector<Region>> whole_planes(const ProgramOp& op, const Dims& shape) const {
    const auto channels = channels_of(op, shape);
    if (!channels) return std::nullopt;
    const Planes to(shape);
    std::vector<Region> regions;
    for (std::int64_t c = 0; c < to.channels;) {
      const Channel first = (*channels)[static_cast<std::size_t>(c)];
      const Dims& source = value(op.inputs[at(first.source)]).shape;
      std::int64_t run = 1;
      while (c + run < to.channels &&
             (*channels)[static_cast<std::size_t>(c + run)] == Channel{first.source, first.channel + run})
        ++run;
      const std::int64_t source_channels = source[1];
      // Whole blocks where both sides stand at one; a last one that is cut takes its padding along.
      std::int64_t blocks = 0;
      if (c % pack() == 0 && first.channel % pack() == 0) {
        blocks = run / pack();
        if (c + run == to.channels && first.channel + run == source_channels && run % pack() != 0) ++blocks;
      }
      const std::int64_t image_to = blocks_of(to.channels) * to.plane * pack(),
                         image_from = blocks_of(source_channels) * to.plane * pack();
      const std::int64_t src = first.channel / pack() * to.plane * pack() + first.channel % pack();
      const std::int64_t dst = c / pack() * to.plane * pack() + c % pack();
      if (blocks > 0) {
        regions.push_back(Region::make(first.source, Dims{to.batch, blocks * to.plane * pack()}, Dims{image_from, 1}, src,
                                       Dims{image_to, 1}, dst, packed_extent(op.inputs[at(first.source)]),
                                       element_count(packed_shape(shape))));
        c += std::min(run, blocks * pack());
        continue;
      }
      const std::int64_t lanes = std::min({run, pack() - c % pack(), pack() - first.channel % pack()});
      regions.push_back(Region::make(first.source, Dims{to.batch, to.plane, lanes}, Dims{image_from, pack(), 1}, src,
                                     Dims{image_to, pack(), 1}, dst, packed_extent(op.inputs[at(first.source)]),
                                     element_count(packed_shape(shape))));
      c += lanes;
    }
    return regions;
  }

  // Each region goes the same way through every plane of one source with the result's channels (or spreads one number).
  std::optional<std::vector<Region>> within_planes(const ProgramOp& op, const Dims& shape) const {
    const Planes to(shape);
    const std::int64_t planes = to.batch * to.channels, packed_planes = to.batch * blocks_of(to.channels);
    std::vector<Region> regions;
    for (const Region& region : op.regions) {
      const Dims& source = value(op.inputs[at(region.source)]).shape;
      const bool fill = element_count(source) == 1;
      const std::int64_t from_plane = fill ? 0 : Planes(source).plane;
      if (!fill && (source[0] != to.batch || source[1] != to.channels)) return std::nullopt;
      Dims size, src, dst;
      std::int64_t covered = 1;
      for (std::size_t i = 0; i < static_cast<std::size_t>(region.axes); ++i) {
        const std::int64_t count = region.size[i], from = region.src.stride[i], step = region.dst.stride[i];
        if (step >= to.plane) {
          if (step != to.plane || from != from_plane || covered != 1) return std::nullopt;
          covered = count;
        } else if (step * count > to.plane) {  // planes and a spatial axis that step as one
          const std::int64_t inner = to.plane / step;
          if (inner * step != to.plane || count % inner != 0 || from * inner != from_plane || covered != 1) return std::nullopt;
          covered = count / inner;
          size.push_back(inner);
          src.push_back(from * pack());
          dst.push_back(step * pack());
        } else {
          size.push_back(count);
          src.push_back(from * pack());
          dst.push_back(step * pack());
        }
      }
      if (covered != planes || region.dst.offset >= to.plane ||
          (!fill && (region.src.offset < 0 || region.src.offset >= from_plane)))
        return std::nullopt;
      size.insert(size.begin(), packed_planes);
      src.insert(src.begin(), from_plane * pack());
      dst.insert(dst.begin(), to.plane * pack());
      size.push_back(pack());
      src.push_back(fill ? 0 : 1);
      dst.push_back(1);
      if (size.size() > kMaxAxes) return std::nullopt;
      regions.push_back(Region::make(region.source, size, src, fill ? 0 : region.src.offset * pack(), dst,
                                     region.dst.offset * pack(), fill ? 1 : packed_extent(op.inputs[at(region.source)]),
                                     element_count(packed_shape(shape))));
    }
    return regions;
  }

  Program& program_;
  const Table& table_;
  PackedWeights& weights_;
  const Rates& rates_;
  std::vector<int> packed_;  // by value: its packed form, -1 for none
  double searched_ms_ = 0;
  std::vector<bool> plain_;  // by value: whether its plain form is there
};

}  // namespace

double choose(Program& program, const Table& table, PackedWeights& weights) { return Choosing(program, table, weights).run(); }

double predict_us(const Program& program, const Table& table) {
  const Rates& rate = rates(table);
  const auto shape = [&](int value) -> const Dims& { return program.values[at(value)].shape; };
  const auto bytes = [&](int value) {
    return value < 0 ? 0.0
                     : static_cast<double>(element_count(shape(value)) *
                                           static_cast<std::int64_t>(item_size(program.values[at(value)].dtype)));
  };
  double us = 0;
  for (const ProgramOp& op : program.ops) {
    if (!op.is_raster() && op.op->name == "Conv" && program.values[at(op.output)].dtype == DType::f32) {
      PackedConv conv{conv_shape(shape(op.inputs[0]), shape(op.inputs[1]), DType::f32, op.attributes), &table, false};
      const auto candidates = candidates_of(conv, rate);
      if (!candidates.empty()) {
        us += candidates.front().us;
        continue;
      }
    }
    Work work;
    for (const int input : op.inputs) work.moved += bytes(input);
    work.moved += bytes(op.output);
    const bool product = !op.is_raster() && (op.op->name == "Linear" || op.op->name == "MatMul");
    if (product) work.panel = 2.0 * static_cast<double>(element_count(shape(op.output)) * shape(op.inputs[0]).back());
    us += rate.us(work);
  }
  return us;
}

}  // namespace walle

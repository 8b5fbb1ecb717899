// Tests of the byte kernels of every instruction set: equal bit for bit to the plain kernels, also when a team computes a
// product.
#include <bit>
#include <cstring>
#include <iterator>
#include <limits>
#include <vector>

#include "atomic/products/integer_products.h"
#include "check.h"
#include "guarded.h"
#include "kernels/scalar/set.h"
#include "operators/op.h"

using namespace walle;
using check::Guarded;
using check::GuardedBytes;

namespace {

constexpr std::int64_t kPlain = 4;  // columns of a block of the plain kernels

std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }
void fill(std::mt19937_64& random, const Guarded& to, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) to.data()[i] = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
}
bool same(const void* a, const void* b, std::size_t bytes) { return bytes == 0 || std::memcmp(a, b, bytes) == 0; }

// One block of columns, so that blocks of every width are compared.
void panels(const Bytes& bytes) {
  std::mt19937_64 random(12);
  for (int round = 0; round < check::rounds(200); ++round) {
    PanelArgs args;
    args.rows = check::whole(random, 1, 31);
    args.width = check::whole(random, 1, 4);
    args.a_step = check::whole(random, 1, 20);
    const Segment segment{check::whole(random, 0, 20), check::whole(random, 1, 40)};
    args.segments = &segment;
    args.segment_count = 1;
    args.out_step = args.width;
    args.accumulate = check::whole(random, 0, 1) == 0;
    const std::size_t in_count = size((args.rows - 1) * args.a_step + segment.offset + segment.length),
                      out_count = size(args.rows * args.width);
    Guarded a(in_count), w(size(segment.length * bytes.pack)), narrow(size(segment.length * kPlain)), out(out_count),
        wanted(out_count), bias(size(args.width));
    fill(random, a, in_count);
    fill(random, w, size(segment.length * bytes.pack));
    fill(random, out, out_count);
    fill(random, bias, size(args.width));
    std::memcpy(wanted.data(), out.data(), out_count * sizeof(float));
    for (std::int64_t k = 0; k < segment.length; ++k)
      std::memcpy(narrow.data() + k * kPlain, w.data() + k * bytes.pack, kPlain * sizeof(float));
    args.a = a.data();
    if (check::whole(random, 0, 1) == 0) args.finish.bias = bias.data();
    args.w = w.data();
    args.out = out.data();
    bytes.panel(args);
    args.w = narrow.data();
    args.out = wanted.data();
    scalar::kBytes.panel(args);
    CHECK(same(out.data(), wanted.data(), out_count * sizeof(float)));
  }
}

// Sums at both ends of the range wrap around in the same way, and no product of two bytes saturates.
void extremes(const Bytes& bytes) {
  PanelArgs args;
  args.rows = args.width = 1;
  args.a_step = args.out_step = 1;
  const Segment segment{0, 40};
  args.segments = &segment;
  args.segment_count = 1;
  std::vector<float> a(40, std::bit_cast<float>(0xffffffffu)), w(size(40 * bytes.pack));
  for (const std::uint32_t weights : {0x80808080u, 0x7f7f7f7fu}) {
    w.assign(w.size(), std::bit_cast<float>(weights));
    float out = 0;
    args.a = a.data();
    args.w = w.data();
    args.out = &out;
    bytes.panel(args);
    CHECK(std::bit_cast<std::int32_t>(out) == 160 * 255 * (weights == 0x80808080u ? -128 : 127));
  }
}

// Compares with the plain kernel on four columns at a time.
void depthwise(const Bytes& bytes) {
  std::mt19937_64 random(13);
  for (int round = 0; round < check::rounds(100); ++round) {
    PanelArgs args;
    args.rows = check::whole(random, 1, 13);
    args.blocks = check::whole(random, 1, 2);
    args.width = args.out_block = bytes.pack;
    const std::int64_t columns = args.blocks * bytes.pack, taps = check::whole(random, 1, 9);
    args.out_step = 2 * bytes.pack;
    args.a_step = columns / kPlain + check::whole(random, 0, 3);
    std::vector<Segment> segments;
    std::int64_t reach = 0;
    for (std::int64_t tap = 0; tap < taps; ++tap) {
      segments.push_back({check::whole(random, 0, 30), columns / kPlain});
      reach = std::max(reach, segments.back().offset);
    }
    args.segments = segments.data();
    args.segment_count = taps;
    const std::size_t in_count = size((args.rows - 1) * args.a_step + reach + columns / kPlain),
                      out_count = size(args.rows * args.out_step);
    Guarded a(in_count), w(size(taps * columns)), bias(size(columns)), out(out_count);
    fill(random, a, in_count);
    fill(random, bias, size(columns));
    for (std::int64_t i = 0; i < taps * columns; ++i)
      w.data()[i] = std::bit_cast<float>(static_cast<std::int32_t>(check::whole(random, -128, 127)));
    args.a = a.data();
    args.w = w.data();
    args.out = out.data();
    if (round % 3 != 0) args.finish.bias = bias.data();
    bytes.depthwise(args);
    for (std::int64_t j = 0; j < columns; j += kPlain) {
      std::vector<float> narrow(size(taps * kPlain)), wanted(size(args.rows * kPlain));
      for (std::int64_t tap = 0; tap < taps; ++tap)
        std::memcpy(&narrow[size(tap * kPlain)], w.data() + tap * columns + j, kPlain * sizeof(float));
      PanelArgs four = args;
      four.blocks = 1;
      four.width = four.out_step = kPlain;
      four.a = a.data() + j / kPlain;
      four.w = narrow.data();
      four.out = wanted.data();
      if (four.finish.bias != nullptr) four.finish.bias += j;
      scalar::kBytes.depthwise(four);
      for (std::int64_t row = 0; row < args.rows; ++row)
        CHECK(same(out.data() + row * args.out_step + j, &wanted[size(row * kPlain)], kPlain * sizeof(float)));
    }
  }
}

ByteRange some_range(std::mt19937_64& random) {
  const bool is_signed = check::whole(random, 0, 1) == 0;
  const std::int64_t least = is_signed ? -128 : 0, zero = check::whole(random, least, least + 255);
  const bool relu = check::whole(random, 0, 3) == 0;
  return {relu ? 0.0f : static_cast<float>(least - zero), static_cast<float>(least + 255 - zero),
          static_cast<std::int32_t>(zero)};
}

// Compares with the plain kernel on eight columns at a time.
void finishes(const Bytes& bytes) {
  std::mt19937_64 random(14);
  for (int round = 0; round < check::rounds(200); ++round) {
    BytesFinish args;
    args.rows = check::whole(random, 0, 9);
    args.columns = check::whole(random, 1, 2 * bytes.pack);
    args.row_step = args.columns + check::whole(random, 0, 5);
    args.range = some_range(random);
    const std::int64_t item = round % 4 == 0 ? 4 : 1, whole = 2 * bytes.pack;
    const std::size_t extent = args.rows == 0 ? 0 : size(((args.rows - 1) * args.row_step + args.columns) * item);
    Guarded sums(size(args.rows * whole)), scale(size(whole));
    GuardedBytes out(extent);
    std::vector<std::byte> wanted(extent);
    for (std::int64_t i = 0; i < args.rows * whole; ++i)
      sums.data()[i] = std::bit_cast<float>(static_cast<std::int32_t>(random()) >> check::whole(random, 0, 31));
    for (std::int64_t i = 0; i < whole; ++i)
      scale.data()[i] = static_cast<float>(check::whole(random, 1, 64)) / (round % 3 == 0 ? 2.0f : 6400.0f);  // ties
    if (extent > 0) std::memset(out.data(), 0, extent);
    args.sums = sums.data();
    if (item == 1) args.scale = scale.data();
    args.out = out.data();
    bytes.finish(args);
    for (std::int64_t j = 0; j < args.columns; j += 2 * kPlain) {
      std::vector<float> narrow(size(args.rows * 2 * kPlain + 1));
      BytesFinish eight = args;
      eight.columns = std::min(2 * kPlain, args.columns - j);
      for (std::int64_t row = 0; row < args.rows; ++row)
        std::memcpy(&narrow[size(row * 2 * kPlain)], sums.data() + row * whole + j, size(eight.columns) * sizeof(float));
      eight.sums = narrow.data();
      if (eight.scale != nullptr) eight.scale += j;
      eight.out = wanted.data() + j * item;
      scalar::kBytes.finish(eight);
    }
    CHECK(same(out.data(), wanted.data(), extent));
  }
}

void sums(const Bytes& bytes) {
  std::mt19937_64 random(15);
  for (std::int64_t count = 0; count < 100; ++count) {
    const GuardedBytes a(size(count)), b(size(count)), out(size(count));
    std::vector<std::uint8_t> wanted(size(count) + 1);
    for (std::int64_t i = 0; i < count; ++i) {
      a.data()[i] = static_cast<std::byte>(random());
      b.data()[i] = static_cast<std::byte>(random());
    }
    BytesSum args;
    args.in[0] = reinterpret_cast<const std::uint8_t*>(a.data());
    args.in[1] = reinterpret_cast<const std::uint8_t*>(b.data());
    for (int k = 0; k < 2; ++k) {
      args.flip[k] = check::whole(random, 0, 1) == 0 ? 0 : 0x80;
      args.zero[k] = static_cast<std::int32_t>(check::whole(random, 0, 255));
      args.scale[k] = static_cast<float>(check::whole(random, 1, 30)) / 16;
    }
    args.range = some_range(random);
    args.count = count;
    args.out = reinterpret_cast<std::uint8_t*>(out.data());
    bytes.sum(args);
    args.out = wanted.data();
    scalar::kBytes.sum(args);
    CHECK(same(out.data(), wanted.data(), size(count)));
  }
}

void rounds(const Bytes& bytes) {
  std::mt19937_64 random(17);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float odd[] = {std::numeric_limits<float>::quiet_NaN(), kInfinity, -kInfinity, 0.5f, -1.5f, 2.5f, -0.0f, 1e30f, -1e30f};
  for (std::int64_t count = 0; count < 70; ++count) {
    Guarded in(size(count));
    const GuardedBytes out(size(count));
    std::vector<std::uint8_t> wanted(size(count) + 1);
    for (std::int64_t i = 0; i < count; ++i)
      in.data()[i] = i % 3 == 0 ? odd[size(i / 3) % std::size(odd)] : static_cast<float>(check::whole(random, -700, 700)) / 4;
    BytesRound args;
    args.in = in.data();
    args.scale = count % 2 == 0 ? 1.0f : 0.3f;
    args.range = some_range(random);
    args.count = count;
    args.out = reinterpret_cast<std::uint8_t*>(out.data());
    bytes.round(args);
    args.out = wanted.data();
    scalar::kBytes.round(args);
    CHECK(same(out.data(), wanted.data(), size(count)));
  }
}

Tensor random_bytes(std::mt19937_64& random, DType dtype, Dims shape) {
  Tensor tensor = Tensor::empty(dtype, std::move(shape));
  for (std::int64_t i = 0; i < tensor.size(); ++i) tensor.raw()[i] = static_cast<std::byte>(random());
  return tensor;
}

// Compares a whole product on each instruction set, by one thread and by a team, in guarded buffers, with the plain kernels'
// result.
void products(const char* op, Dims x_shape, Dims w_shape, const Attributes& attributes, bool scaled) {
  std::mt19937_64 random(16);
  const OpDef& def = *find_operator(op);
  const std::int64_t columns = def.name == "IntegerConv" ? w_shape[0] : w_shape[1];
  for (const DType dtype : {DType::u8, DType::i8}) {
    const Tensor x = random_bytes(random, dtype, x_shape), w = random_bytes(random, DType::i8, w_shape),
                 zero = random_bytes(random, dtype, {}), result_zero = random_bytes(random, DType::i8, {});
    Tensor bias = Tensor::empty(DType::i32, {columns}), scale = Tensor::empty(DType::f32, {columns});
    for (std::int64_t i = 0; i < columns; ++i) {
      bias.data<std::int32_t>()[i] = static_cast<std::int32_t>(check::whole(random, -5000, 5000));
      scale.data<float>()[i] = static_cast<float>(check::whole(random, 1, 100)) / 20000;
    }
    const Tensor* tensors[] = {&x, &w, &zero, &bias, &scale, &result_zero};
    std::vector<Operand> operands;
    for (const Tensor* tensor : tensors) operands.push_back({tensor->dtype(), tensor->shape(), tensor, false});
    if (!scaled) operands.resize(4);
    const TensorType type = infer_atomic(def, operands, attributes);
    const std::size_t extent = size(element_count(type.shape)) * item_size(type.dtype);
    std::vector<std::byte> wanted;
    for (const InstructionSet& set : instruction_sets()) {
      if (!set.available) continue;
      std::vector<Layout> layouts;
      for (const Operand& operand : operands)
        layouts.push_back({operand.dtype, operand.shape, contiguous_strides(operand.shape), operand.constant, false});
      const auto step = def.as<OwnKernel>()->make_step({layouts, type, attributes, kernels(set.name)});
      for (const int members : {1, 3}) {
        Team team(members);
        const GuardedBytes in(size(x.size())), out(extent);
        if (x.size() > 0) std::memcpy(in.data(), x.raw(), size(x.size()));
        const Tensor scratch = Tensor::empty(DType::u8, {static_cast<std::int64_t>(step->scratch_bytes()) + 64});
        std::byte* inputs[6];
        for (std::size_t i = 0; i < operands.size(); ++i) inputs[i] = i == 0 ? in.data() : tensors[i]->raw();
        step->run_by(team, inputs, out.data(), scratch.raw());
        if (set.name == "scalar" && members == 1) wanted.assign(out.data(), out.data() + extent);
        CHECK(same(out.data(), wanted.data(), extent));
      }
    }
  }
}

}  // namespace

int main() {
  for (const InstructionSet& set : instruction_sets()) {
    if (!set.available) continue;
    const Bytes& here = bytes(kernels(set.name));
    panels(here);
    extremes(here);
    depthwise(here);
    finishes(here);
    sums(here);
    rounds(here);
  }
  const Attributes same_size{{"pads", Dims{1, 1, 1, 1}}};
  for (const bool scaled : {true, false}) {
    products("IntegerConv", {2, 9, 11, 8}, {37, 8, 3, 3}, same_size, scaled);
    products("IntegerConv", {1, 9, 11, 3}, {16, 3, 3, 3}, {{"pads", Dims{1, 0, 2, 1}}, {"strides", Dims{2, 2}}}, scaled);
    products("IntegerConv", {1, 13, 7, 16}, {40, 16, 1, 1}, {}, scaled);
    products("IntegerConv", {1, 13, 7, 16}, {40, 16, 1, 1}, {{"strides", Dims{2, 3}}}, scaled);
    products("IntegerConv", {1, 12, 10, 50}, {50, 1, 3, 3}, {{"group", std::int64_t{50}}, {"dilations", Dims{2, 1}}}, scaled);
    products("IntegerConv", {1, 6, 5, 48}, {48, 1, 3, 3}, {{"group", std::int64_t{48}}}, scaled);
    products("IntegerConv", {1, 8, 8, 20}, {30, 10, 2, 2}, {{"group", std::int64_t{2}}}, scaled);
    products("IntegerConv", {1, 100, 5}, {7, 5, 4}, {}, scaled);
    products("IntegerConv", {1, 4, 5, 6, 9}, {7, 9, 2, 2, 2}, {}, scaled);
    products("IntegerConv", {0, 4, 4, 4}, {7, 4, 1, 1}, {}, scaled);
    products("IntegerLinear", {3, 40}, {40, 33}, {}, scaled);
    products("IntegerLinear", {2, 95, 7}, {7, 70}, {}, scaled);
    products("IntegerLinear", {0, 8}, {8, 5}, {}, scaled);
    products("IntegerLinear", {3, 0}, {0, 5}, {}, scaled);
  }
  return check::failures != 0;
}

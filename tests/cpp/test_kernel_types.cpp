// Tests of every kernel of every element type on every instruction set of this CPU, compared with scalar: random bits as
// operands, odd tails, zero sizes, strides, unaligned addresses, guarded buffers. (test_kernels.cpp has tighter bounds for
// float32.)
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "check.h"
#include "core/small_float.h"
#include "guarded.h"
#include "kernels/table.h"

using namespace walle;

using Guarded = check::GuardedBytes;

namespace {

constexpr std::int64_t kLengths[] = {0, 1, 3, 7, 8, 17, 33, 65, 100};

// Fills with random bits: 0 and 1 for bools, valid codes for packed types.
void fill(std::mt19937_64& random, DType dtype, std::byte* data, std::int64_t count) {
  if (is_complex(dtype)) return fill(random, part_dtype(dtype), data, 2 * count);
  const std::size_t item = item_size(dtype);
  for (std::int64_t i = 0; i < count; ++i) {
    std::uint64_t bits = random();
    if (check::whole(random, 0, 3) == 0) bits &= 7;  // small numbers, denormals
    if (check::whole(random, 0, 15) == 0) bits = ~std::uint64_t{0} << check::whole(random, 0, 63);
    if (dtype == DType::b8) bits &= 1;
    if (dtype == DType::u4 || dtype == DType::f4e2m1) bits &= 15;
    if (dtype == DType::u2) bits &= 3;
    if (dtype == DType::i4) bits = static_cast<std::uint64_t>(static_cast<std::int64_t>(bits % 16) - 8);
    if (dtype == DType::i2) bits = static_cast<std::uint64_t>(static_cast<std::int64_t>(bits % 4) - 2);
    std::memcpy(data + static_cast<std::size_t>(i) * item, &bits, item);
  }
}

double number(DType dtype, const std::byte* at) {
  switch (dtype) {
    case DType::f32: {
      float value;
      std::memcpy(&value, at, sizeof(value));
      return value;
    }
    case DType::f64: {
      double value;
      std::memcpy(&value, at, sizeof(value));
      return value;
    }
    default: return 0;
  }
}

// Returns whether two complex numbers agree: nearly equal by their larger part, which cancellation in the other is measured by.
// Parts that are not finite need not be the same, because a fused product overflows later.
bool same_complex(DType dtype, const std::byte* a, const std::byte* b) {
  const DType part = part_dtype(dtype);
  const std::size_t step = item_size(part);
  const double left[] = {number(part, a), number(part, a + step)}, right[] = {number(part, b), number(part, b + step)};
  const double size = std::fmax(std::fabs(right[0]), std::fabs(right[1]));
  for (int i = 0; i < 2; ++i) {
    if (std::isfinite(left[i]) != std::isfinite(right[i])) return size > 1e38;
    if (std::isfinite(right[i]) && std::isfinite(size) && std::fabs(left[i] - right[i]) > 1e-6 * size + 3e-38) return false;
  }
  return true;
}

// Returns whether two elements agree: equal bits; for float32 and float64 nearly equal numbers, and any NaN with any NaN.
bool same(DType dtype, const std::byte* a, const std::byte* b) {
  if (std::memcmp(a, b, item_size(dtype)) == 0) return true;
  if (is_complex(dtype)) return same_complex(dtype, a, b);
  if (dtype == DType::f16) {
    Half left, right;
    std::memcpy(static_cast<void*>(&left), a, 2);
    std::memcpy(static_cast<void*>(&right), b, 2);
    return left != left && right != right;
  }
  if (dtype == DType::bf16) {
    BFloat left, right;
    std::memcpy(static_cast<void*>(&left), a, 2);
    std::memcpy(static_cast<void*>(&right), b, 2);
    return left != left && right != right;
  }
  if (dtype != DType::f32 && dtype != DType::f64) return false;
  const double left = number(dtype, a), right = number(dtype, b);
  if (std::isnan(left) || std::isnan(right)) return std::isnan(left) && std::isnan(right);
  if (std::isinf(left) || std::isinf(right)) {  // rounded to different sides of the largest float
    return std::signbit(left) == std::signbit(right) && std::fabs(std::isinf(left) ? right : left) > 3e38;
  }
  return std::fabs(left - right) <= 1e-6 * std::fabs(right) + 3e-38;
}

struct Watch {
  std::string what;
  void equal(DType dtype, const Guarded& got, const Guarded& wanted) const {
    const std::size_t item = item_size(dtype);
    for (std::size_t at = 0; at < got.bytes(); at += item)
      if (!same(dtype, got.data() + at, wanted.data() + at)) {
        check::report(false, __FILE__, __LINE__, what + " differs at element " + std::to_string(at / item));
        return;
      }
  }
};

std::size_t bytes(DType dtype, std::int64_t count) { return static_cast<std::size_t>(count) * item_size(dtype); }

// Compares out = f(in) of both backends at strides 1, 2 and 0.
void unary(const std::string& what, UnaryFn fast, UnaryFn plain, DType from, DType to, std::mt19937_64& random) {
  check::report((fast == nullptr) == (plain == nullptr), __FILE__, __LINE__, what + " is not on both");
  if (fast == nullptr || plain == nullptr) return;
  for (const std::int64_t count : kLengths)
    for (const std::int64_t stride : {1, 2, 0}) {
      if (count == 0 && stride == 0) continue;
      const std::int64_t needed = count == 0 ? 0 : (count - 1) * stride + 1;
      const Guarded in(bytes(from, needed)), got(bytes(to, count)), wanted(bytes(to, count));
      fill(random, from, in.data(), needed);
      fast(in.data(), stride, got.data(), count);
      plain(in.data(), stride, wanted.data(), count);
      Watch{what + " of " + std::to_string(count) + " by " + std::to_string(stride)}.equal(to, got, wanted);
    }
}

void binary(const std::string& what, BinaryFn fast, BinaryFn plain, DType from, DType to, std::mt19937_64& random) {
  check::report((fast == nullptr) == (plain == nullptr), __FILE__, __LINE__, what + " is not on both");
  if (fast == nullptr || plain == nullptr) return;
  for (const std::int64_t count : kLengths)
    for (const auto& [left, right] : {std::pair<std::int64_t, std::int64_t>{1, 1}, {0, 1}, {1, 0}, {2, 1}}) {
      if (count == 0 && left * right == 0) continue;
      const auto needed = [&](std::int64_t stride) { return count == 0 ? 0 : (count - 1) * stride + 1; };
      const Guarded a(bytes(from, needed(left))), b(bytes(from, needed(right))), got(bytes(to, count)), wanted(bytes(to, count));
      fill(random, from, a.data(), needed(left));
      fill(random, from, b.data(), needed(right));
      fast(a.data(), left, b.data(), right, got.data(), count);
      plain(a.data(), left, b.data(), right, wanted.data(), count);
      Watch{what + " of " + std::to_string(count)}.equal(to, got, wanted);
    }
}

// Fills floats with small integers, whose sums are exact; sums of random bits would depend on the order of additions.
void tame(DType dtype, std::byte* data, std::int64_t count) {
  if (is_complex(dtype)) return tame(part_dtype(dtype), data, 2 * count);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t small = i * 5 % 7 - 3;
    std::byte* at = data + bytes(dtype, i);
    if (dtype == DType::f32) {
      const auto value = static_cast<float>(small);
      std::memcpy(at, &value, sizeof(value));
    } else if (dtype == DType::f64) {
      const auto value = static_cast<double>(small);
      std::memcpy(at, &value, sizeof(value));
    } else if (is_half(dtype)) {
      std::memset(at, 0, 2);
    }
  }
}

void reduce(const std::string& what, ReduceFn fast, ReduceFn plain, DType from, DType to, std::mt19937_64& random) {
  check::report((fast == nullptr) == (plain == nullptr), __FILE__, __LINE__, what + " is not on both");
  if (fast == nullptr || plain == nullptr) return;
  for (const std::int64_t count : kLengths)
    for (const std::int64_t stride : {1, 2}) {
      if (count == 0) continue;
      const std::int64_t needed = (count - 1) * stride + 1;
      const Guarded in(bytes(from, needed)), got(bytes(to, 1)), wanted(bytes(to, 1));
      fill(random, from, in.data(), needed);
      tame(from, in.data(), needed);
      fast(in.data(), stride, count, got.data());
      plain(in.data(), stride, count, wanted.data());
      Watch{what + " of " + std::to_string(count)}.equal(to, got, wanted);
    }
}

void products(const Table& fast, const Table& plain, std::size_t type, std::mt19937_64& random) {
  const DType dtype = kComputeTypes[type];
  const std::string what = "product of " + std::string(dtype_name(dtype));
  const Gemm &gemm = fast.gemm[type], &meaning = plain.gemm[type];
  check::report((gemm.run == nullptr) == (meaning.run == nullptr), __FILE__, __LINE__, what + " is not on both");
  const bool rounds = dtype == DType::f32 && fast.bfloat16 != nullptr;  // checked by test_bfloat16.cpp
  if (gemm.run != nullptr && !rounds)
    for (const auto& [m, n, k] :
         {std::array<std::int64_t, 3>{0, 3, 2}, {3, 0, 2}, {2, 3, 0}, {1, 1, 1}, {5, 17, 9}, {13, 33, 7}}) {
      const Guarded a(bytes(dtype, m * k)), b(bytes(dtype, k * n)), got(bytes(dtype, m * n)), wanted(bytes(dtype, m * n));
      fill(random, dtype, a.data(), m * k);
      fill(random, dtype, b.data(), k * n);
      tame(dtype, a.data(), m * k);
      tame(dtype, b.data(), k * n);
      for (const auto& [with, out] : {std::pair{&gemm, &got}, {&meaning, &wanted}}) {
        const Guarded scratch((with->scratch_bytes(m, n, k) + 63) / 64 * 64);
        with->run({m, n, k, m, a.data(), k, 1, b.data(), n, 1, out->data(), n, scratch.data()});
      }
      Watch{what}.equal(dtype, got, wanted);
    }
  check::report((fast.axpy[type] == nullptr) == (plain.axpy[type] == nullptr), __FILE__, __LINE__, what + " (axpy)");
  if (fast.axpy[type] == nullptr) return;
  for (const std::int64_t count : kLengths)
    for (const std::int64_t stride : {1, 3}) {
      const std::int64_t needed = count == 0 ? 0 : (count - 1) * stride + 1;
      const Guarded factor(bytes(dtype, 1)), in(bytes(dtype, needed)), got(bytes(dtype, count)), wanted(bytes(dtype, count));
      fill(random, dtype, factor.data(), 1);
      fill(random, dtype, in.data(), needed);
      fill(random, dtype, got.data(), count);
      for (const auto& [data, size] : {std::pair{factor.data(), std::int64_t{1}}, {in.data(), needed}, {got.data(), count}})
        tame(dtype, data, size);
      if (count > 0) std::memcpy(wanted.data(), got.data(), got.bytes());
      fast.axpy[type](factor.data(), in.data(), stride, got.data(), count);
      plain.axpy[type](factor.data(), in.data(), stride, wanted.data(), count);
      Watch{what + " (axpy)"}.equal(dtype, got, wanted);
    }
}

void selects(const Table& fast, const Table& plain, std::mt19937_64& random) {
  constexpr DType kOfSize[] = {DType::u8, DType::u16, DType::u32, DType::u64, DType::c128};
  for (std::size_t size = 0; size < 5; ++size)
    for (const std::int64_t count : kLengths) {
      const DType dtype = kOfSize[size];
      const Guarded where(bytes(DType::b8, count)), a(bytes(dtype, count)), b(bytes(dtype, 1)), got(bytes(dtype, count)),
          wanted(bytes(dtype, count));
      fill(random, DType::b8, where.data(), count);
      fill(random, dtype, a.data(), count);
      fill(random, dtype, b.data(), 1);
      fast.select[size](where.data(), 1, a.data(), 1, b.data(), 0, got.data(), count);
      plain.select[size](where.data(), 1, a.data(), 1, b.data(), 0, wanted.data(), count);
      Watch{"select of " + std::string(dtype_name(dtype))}.equal(dtype, got, wanted);
    }
}

void conversions(const Table& fast, const Table& plain, std::mt19937_64& random) {
  for (std::size_t from = 0; from < kComputeCount; ++from) {
    for (std::size_t to = 0; to < kComputeCount; ++to)
      unary("cast " + std::to_string(from) + " to " + std::to_string(to), fast.cast[from][to], plain.cast[from][to],
            kComputeTypes[from], kComputeTypes[to], random);
    unary("round to odd of " + std::to_string(from), fast.to_odd[from], plain.to_odd[from], kComputeTypes[from], DType::f32,
          random);
  }
  for (std::size_t stored = 0; stored < kStoredCount; ++stored) {
    const auto dtype = static_cast<DType>(kFirstStored + static_cast<int>(stored));
    unary("decode " + std::string(dtype_name(dtype)), fast.decode[stored], plain.decode[stored], dtype, DType::f32, random);
    for (std::size_t encoding = 0; encoding < kEncodings; ++encoding)
      unary("encode " + std::string(dtype_name(dtype)), fast.encode[stored][encoding], plain.encode[stored][encoding],
            dtype >= DType::i4 ? DType::i32 : DType::f32, dtype, random);
  }
}

// Whole passes of Fourier transforms and pieces of them.
void passes(const Table& fast, const Table& plain, std::mt19937_64& random) {
  const auto fill_unit = [&](const Guarded& buffer) {
    auto* at = reinterpret_cast<double*>(buffer.data());
    for (std::size_t i = 0; i < buffer.bytes() / sizeof(double); ++i)
      at[i] = std::uniform_real_distribution<double>(-1, 1)(random);
  };
  for (const std::int64_t radix : {2, 3, 4, 5, 7, 61})
    for (const auto& [rest, step] : {std::pair<std::int64_t, std::int64_t>{1, 1}, {9, 1}, {33, 1}, {5, 4}, {3, 19}, {1, 40}}) {
      const std::size_t size = static_cast<std::size_t>(radix * rest * step) * sizeof(double);
      const Guarded re(size), im(size), turns(static_cast<std::size_t>((radix - 1) * 2 * rest) * sizeof(double)),
          wheel(static_cast<std::size_t>(2 * radix) * sizeof(double));
      for (const Guarded* buffer : {&re, &im, &turns, &wheel}) fill_unit(*buffer);
      const Guarded out_re[] = {Guarded(size), Guarded(size)}, out_im[] = {Guarded(size), Guarded(size)};
      const auto doubles = [](const Guarded& buffer) { return reinterpret_cast<double*>(buffer.data()); };
      for (const int which : {0, 1}) {
        // The backend in pieces, scalar at once.
        const std::int64_t count = which == 0 ? (rest + 1) / 2 : rest, width = which == 0 ? (step + 2) / 3 : step;
        for (std::int64_t p = 0; p < rest; p += count)
          for (std::int64_t q = 0; q < step; q += width) {
            FourierPass pass;
            pass.radix = radix, pass.rest = rest, pass.step = step;
            pass.count = std::min(count, rest - p), pass.width = std::min(width, step - q);
            pass.re = doubles(re) + p * step + q, pass.im = doubles(im) + p * step + q;
            pass.out_re = doubles(out_re[which]) + radix * p * step + q;
            pass.out_im = doubles(out_im[which]) + radix * p * step + q;
            pass.turns = doubles(turns) + p, pass.wheel = doubles(wheel);
            (which == 0 ? fast : plain).fourier(pass);
          }
      }
      const std::string what = "pass of radix " + std::to_string(radix);
      for (std::size_t i = 0; i < size / sizeof(double); ++i)
        check::report(std::fabs(doubles(out_re[0])[i] - doubles(out_re[1])[i]) < 1e-12 &&
                          std::fabs(doubles(out_im[0])[i] - doubles(out_im[1])[i]) < 1e-12,
                      __FILE__, __LINE__, what + " differs at " + std::to_string(i));
    }
}

void everything(const Table& fast, const Table& plain) {
  std::mt19937_64 random(11);
  for (std::size_t type = 0; type < kComputeCount; ++type) {
    const DType dtype = kComputeTypes[type];
    const std::string of = " of " + std::string(dtype_name(dtype));
    if (dtype != DType::f32) {  // test_kernels.cpp tests float32, on numbers in range
      for (std::size_t op = 0; op < kCountOf<UnaryOp>; ++op)
        unary("unary " + std::to_string(op) + of, fast.unary[op][type], plain.unary[op][type], dtype, dtype, random);
      for (std::size_t op = 0; op < kCountOf<BinaryOp>; ++op)
        binary("binary " + std::to_string(op) + of, fast.binary[op][type], plain.binary[op][type], dtype, dtype, random);
    }
    for (std::size_t op = 0; op < kCountOf<TestOp>; ++op)
      unary("test " + std::to_string(op) + of, fast.test[op][type], plain.test[op][type], dtype, DType::b8, random);
    for (std::size_t op = 0; op < kCountOf<PartOp>; ++op)
      unary("part " + std::to_string(op) + of, fast.part[op][type], plain.part[op][type], dtype, part_dtype(dtype), random);
    for (std::size_t op = 0; op < kCountOf<CompareOp>; ++op)
      binary("comparison " + std::to_string(op) + of, fast.compare[op][type], plain.compare[op][type], dtype, DType::b8, random);
    for (std::size_t op = 0; op < kCountOf<ReduceOp>; ++op)
      reduce("reduction " + std::to_string(op) + of, fast.reduce[op][type], plain.reduce[op][type], dtype, dtype, random);
    for (std::size_t op = 0; op < kCountOf<ArgOp>; ++op)
      reduce("place " + std::to_string(op) + of, fast.arg[op][type], plain.arg[op][type], dtype, DType::i64, random);
    products(fast, plain, type, random);
  }
  selects(fast, plain, random);
  conversions(fast, plain, random);
  passes(fast, plain, random);
}

}  // namespace

int main() {
  for (const InstructionSet& set : instruction_sets()) {
    if (!set.available) continue;
    everything(kernels(set.name), kernels("scalar"));
    std::printf("%s checked\n", std::string(set.name).c_str());
  }
  return check::failures != 0;
}

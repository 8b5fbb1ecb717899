// RandomBits: numbers of a counter (Philox4x32-10, Salmon et al., SC'11): the i-th number depends on the key, the counter and i
// alone.
#include <algorithm>
#include <array>
#include <cstring>

#include "atomic/conversion.h"

namespace walle {

namespace {

using Block = std::array<std::uint32_t, 4>;

// kMany counters at once, word by word, so that compilers can use vectors.
constexpr std::size_t kMany = 16;

void philox(std::uint64_t key, std::uint64_t high, std::uint64_t low, std::uint32_t (&word)[4][kMany]) noexcept {
  constexpr std::uint64_t kFactors[2] = {0xD2511F53, 0xCD9E8D57};
  constexpr std::uint32_t kSteps[2] = {0x9E3779B9, 0xBB67AE85};
  for (std::size_t i = 0; i < kMany; ++i) {
    const std::uint64_t counter = low + i;
    word[0][i] = static_cast<std::uint32_t>(counter);
    word[1][i] = static_cast<std::uint32_t>(counter >> 32);
    word[2][i] = static_cast<std::uint32_t>(high);
    word[3][i] = static_cast<std::uint32_t>(high >> 32);
  }
  auto first = static_cast<std::uint32_t>(key), second = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    for (std::size_t i = 0; i < kMany; ++i) {
      const std::uint64_t left = kFactors[0] * word[0][i], right = kFactors[1] * word[2][i];
      word[0][i] = static_cast<std::uint32_t>(right >> 32) ^ word[1][i] ^ first;
      word[1][i] = static_cast<std::uint32_t>(right);
      word[2][i] = static_cast<std::uint32_t>(left >> 32) ^ word[3][i] ^ second;
      word[3][i] = static_cast<std::uint32_t>(left);
    }
    first += kSteps[0];
    second += kSteps[1];
  }
}

// Floats: uniform in [0, 1), all multiples of 2^-24 or 2^-53 alike.
template <class T>
T number(std::uint64_t bits) noexcept {
  if constexpr (std::is_same_v<T, float>) return static_cast<float>(static_cast<std::int32_t>(bits >> 8)) * 0x1p-24f;
  if constexpr (std::is_same_v<T, double>) return static_cast<double>(static_cast<std::int64_t>(bits >> 11)) * 0x1p-53;
  return static_cast<T>(bits);
}

template <class T>
class RandomStep final : public HostStep {
 public:
  explicit RandomStep(const StepRequest& request) : count_(element_count(request.result.shape)) {}

  void run(std::byte* const* inputs, std::byte* output, std::byte*) const noexcept override {
    std::uint64_t state[3];
    std::memcpy(state, inputs[0], sizeof(state));
    constexpr auto kEach = static_cast<std::int64_t>(16 / sizeof(T)), kBatch = kEach * static_cast<std::int64_t>(kMany);
    std::uint32_t word[4][kMany];
    StopPoll poll;
    for (std::int64_t done = 0; done < count_; done += kBatch, state[2] += kMany) {
      if (!poll.proceed(kBatch)) return;
      philox(state[0], state[1], state[2], word);
      T numbers[kMany][kEach];
      for (std::size_t i = 0; i < kMany; ++i)
        for (std::size_t j = 0; j < static_cast<std::size_t>(kEach); ++j)
          numbers[i][j] = sizeof(T) == 8
                              ? number<T>(word[2 * j % 4][i] | static_cast<std::uint64_t>(word[(2 * j + 1) % 4][i]) << 32)
                              : number<T>(word[j][i]);
      std::memcpy(output + done * static_cast<std::int64_t>(sizeof(T)), numbers,
                  static_cast<std::size_t>(std::min(kBatch, count_ - done)) * sizeof(T));
    }
  }

 private:
  std::int64_t count_;
};

}  // namespace

// Input: key, stream and counter, int64 (3,). Attributes: shape, and to: float32, float64, uint32 or uint64. A counter gives 16
// bytes.
TensorType infer_random_bits(std::span<const Operand> operands, const Attributes& attributes) {
  if (operands[0].dtype != DType::i64 || operands[0].shape != Dims{3})
    throw Error(ErrorKind::shape, "RandomBits takes a key, a stream and a counter, int64 of shape (3,)");
  const DType to = target_dtype(attributes);
  if (to != DType::f32 && to != DType::f64 && to != DType::u32 && to != DType::u64)
    throw Error(ErrorKind::dtype, "RandomBits to " + std::string(dtype_name(to)) + " is not supported");
  const auto shape = attributes.get_ints("shape");
  if (!shape) throw Error(ErrorKind::model, "RandomBits needs the attribute 'shape'");
  element_count(*shape);
  return {to, *shape};
}

std::unique_ptr<HostStep> make_random_bits(const StepRequest& request) {
  switch (request.result.dtype) {
    case DType::f32: return std::make_unique<RandomStep<float>>(request);
    case DType::f64: return std::make_unique<RandomStep<double>>(request);
    case DType::u32: return std::make_unique<RandomStep<std::uint32_t>>(request);
    default: return std::make_unique<RandomStep<std::uint64_t>>(request);
  }
}

}  // namespace walle

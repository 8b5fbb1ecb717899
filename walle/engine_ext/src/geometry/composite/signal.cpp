// DFT, STFT and MelWeightMatrix: the operators around a FourierTransform. All of it in float64, rounded once.
#include <cmath>

#include "geometry/composite/composite.h"
#include "geometry/composite/expressions.h"

namespace walle {

namespace {

using Ref = Emitter::Ref;

Ref transpose(Emitter& emitter, Ref x, Dims perm) { return emitter.one("Transpose", {x}, {{"perm", std::move(perm)}}); }
Ref slice(Emitter& emitter, Ref x, std::int64_t axis, std::int64_t start, std::int64_t end, std::int64_t step = 1) {
  return emitter.one("Slice", {x}, {{"starts", Dims{start}}, {"ends", Dims{end}}, {"axes", Dims{axis}}, {"steps", Dims{step}}});
}
// Return the first `count` along axis 1 of three, padded with zeros at the end if there are fewer.
Ref resized(Emitter& emitter, Ref x, std::int64_t from, std::int64_t count) {
  if (from == count) return x;
  if (from > count) return slice(emitter, x, 1, 0, count);
  return emitter.one("Pad", {x}, {{"pads", Dims{0, 0, 0, 0, count - from, 0}}});
}

bool is_given(std::span<const Ref> inputs, std::size_t index) {
  return index < inputs.size() && inputs[index] != Emitter::kAbsent;
}

double number_of(Emitter& emitter, Ref ref, const std::string& what) {
  const Tensor value = emitter.value(ref, what);
  if (value.size() != 1) throw Error(ErrorKind::shape, what + " is one number, not of shape " + to_string(value.shape()));
  switch (value.dtype()) {
    case DType::f32: return value.data<float>()[0];
    case DType::f64: return value.data<double>()[0];
    case DType::i32: return value.data<std::int32_t>()[0];
    case DType::i64: return static_cast<double>(value.data<std::int64_t>()[0]);
    default: throw Error(ErrorKind::dtype, what + " is " + std::string(dtype_name(value.dtype())));
  }
}
std::int64_t whole_number_of(Emitter& emitter, Ref ref, const std::string& what, std::int64_t least) {
  const double value = number_of(emitter, ref, what);
  if (!(value >= static_cast<double>(least) && value <= 1e9) || value != std::floor(value))
    throw Error(ErrorKind::shape,
                what + " is " + std::to_string(value) + "; it must be a whole number from " + std::to_string(least) + " to 1e9");
  return static_cast<std::int64_t>(value);
}

DType floating_type(const Operand& x, const char* op) {
  if (x.absent || !is_floating(x.dtype))
    throw Error(ErrorKind::dtype, std::string(op) + " does not support " + std::string(dtype_name(x.dtype)));
  return x.dtype;
}

}  // namespace

// Inputs: signal (..., axis, ..., 1 or 2), length, axis.
std::vector<Ref> decompose_dft(Emitter& emitter, std::span<const Ref> inputs, const Attributes& attributes, int) {
  const Operand signal = emitter.operand(inputs[0]);
  const DType dtype = floating_type(signal, "DFT");
  Dims shape = signal.shape;
  const std::size_t rank = shape.size();
  if (rank < 2 || shape.back() < 1 || shape.back() > 2)
    throw Error(ErrorKind::shape, "DFT of shape " + to_string(shape) + "; the last dimension must be 1 (real) or 2 (complex)");
  const std::int64_t asked = is_given(inputs, 2) ? whole_number_of(emitter, inputs[2], "the axis", -1'000'000'000) : -2;
  const std::size_t axis = normal_axis(asked, rank);
  if (axis == rank - 1) throw Error(ErrorKind::shape, "DFT along the last axis, which holds the real and imaginary part");
  const bool inverse = attributes.get_int("inverse", 0) != 0, onesided = attributes.get_int("onesided", 0) != 0;
  const bool to_real = inverse && onesided;
  const std::int64_t components = shape.back();
  if (onesided && !inverse && components == 2) throw Error(ErrorKind::model, "a complex signal has no onesided DFT");
  const std::int64_t n = is_given(inputs, 1) ? whole_number_of(emitter, inputs[1], "the length of a DFT", 1)
                         : to_real           ? 2 * (shape[axis] - 1)
                                             : shape[axis];
  if (n < 1) throw Error(ErrorKind::shape, "DFT of length " + std::to_string(n));

  // (batch, axis, components), with the axis moved after all others.
  Dims perm, back(rank);
  for (std::size_t i = 0; i + 1 < rank; ++i)
    if (i != axis) perm.push_back(static_cast<std::int64_t>(i));
  perm.insert(perm.end(), {static_cast<std::int64_t>(axis), static_cast<std::int64_t>(rank - 1)});
  Dims moved;
  for (std::size_t i = 0; i < rank; ++i) {
    back[static_cast<std::size_t>(perm[i])] = static_cast<std::int64_t>(i);
    moved.push_back(shape[static_cast<std::size_t>(perm[i])]);
  }
  const std::int64_t batch = element_count(Dims(moved.begin(), moved.end() - 2));
  Ref x = transpose(emitter, cast(emitter, inputs[0], DType::f64), perm);
  x = resized(emitter, reshape(emitter, x, {batch, shape[axis], components}), shape[axis], to_real ? n / 2 + 1 : n);
  if (to_real && components == 1) x = emitter.one("Pad", {x}, {{"pads", Dims{0, 0, 0, 0, 0, 1}}});
  x = emitter.one("FourierTransform", {x},
                  {{"inverse", std::int64_t{inverse}},
                   {"length", n},
                   {"onesided", std::int64_t{onesided}},
                   {"scale", inverse ? 1 / static_cast<double>(n) : 1.0}});
  moved[rank - 2] = emitter.operand(x).shape[1];
  moved[rank - 1] = emitter.operand(x).shape[2];
  return {cast(emitter, transpose(emitter, reshape(emitter, x, moved), back), dtype)};
}

// Inputs: signal (batch, length, 1 or 2), step between frames, window (frame length), frame length. Output (batch, frames, bins,
// 2).
std::vector<Ref> decompose_stft(Emitter& emitter, std::span<const Ref> inputs, const Attributes& attributes, int) {
  const Operand signal = emitter.operand(inputs[0]);
  const DType dtype = floating_type(signal, "STFT");
  const Dims shape = signal.shape;
  if (shape.size() != 3 || shape[2] < 1 || shape[2] > 2)
    throw Error(ErrorKind::shape, "STFT of shape " + to_string(shape) + "; it takes (batch, length, 1 or 2)");
  const bool windowed = is_given(inputs, 2);
  const Dims window = windowed ? emitter.operand(inputs[2]).shape : Dims{};
  if (windowed && window.size() != 1)
    throw Error(ErrorKind::shape, "the window has shape " + to_string(window) + ", not one dimension");
  if (!windowed && !is_given(inputs, 3)) throw Error(ErrorKind::model, "STFT needs a window or a frame length");
  const std::int64_t step = whole_number_of(emitter, inputs[1], "the frame step", 1);
  const std::int64_t length = is_given(inputs, 3) ? whole_number_of(emitter, inputs[3], "the frame length", 1) : window[0];
  if (windowed && window[0] != length)
    throw Error(ErrorKind::shape, "a window of " + std::to_string(window[0]) + " for frames of " + std::to_string(length));
  if (length > shape[1] || length < 1)
    throw Error(ErrorKind::shape, "frames of " + std::to_string(length) + " of a signal of " + std::to_string(shape[1]));
  const std::int64_t frames = 1 + (shape[1] - length) / step;
  Ref x = emitter.one("AsStrided", {cast(emitter, inputs[0], DType::f64)},
                      {{"shape", Dims{shape[0], frames, length, shape[2]}},
                       {"strides", Dims{shape[1] * shape[2], step * shape[2], shape[2], 1}}});
  if (windowed) x = emitter.one("Mul", {x, reshape(emitter, cast(emitter, inputs[2], DType::f64), {length, 1})});
  return {cast(emitter, emitter.one("DFT", {x}, {{"onesided", attributes.get_int("onesided", 1)}}), dtype)};
}

// Inputs, each one number: mel bins, length of the DFT, sample rate, lower and upper edge in Hz. Output (spectrogram bins, mel
// bins): triangles that rise from one mel frequency to the next and fall to the one after it.
std::vector<Ref> decompose_mel_weight_matrix(Emitter& emitter, std::span<const Ref> inputs, const Attributes& attributes, int) {
  const std::int64_t bins = whole_number_of(emitter, inputs[0], "the number of mel bins", 1);
  const std::int64_t length = whole_number_of(emitter, inputs[1], "the length of a DFT", 1);
  const std::int64_t rate = whole_number_of(emitter, inputs[2], "the sample rate", 1);
  const auto mel = [](double hertz) { return 2595 * std::log10(1 + hertz / 700); };
  const double low = mel(number_of(emitter, inputs[3], "the lower edge")),
               high = mel(number_of(emitter, inputs[4], "the upper edge"));
  const std::int64_t rows = length / 2 + 1;
  Tensor result = Tensor::empty(DType::f64, {rows, bins});  // allocated first: it may be too large
  Dims at;                                                  // the spectrogram bin of each mel frequency
  for (std::int64_t i = 0; i < bins + 2; ++i) {
    const double hertz =
        700 * (std::pow(10, (static_cast<double>(i) * (high - low) / static_cast<double>(bins + 2) + low) / 2595) - 1);
    const double bin = std::floor(static_cast<double>(length + 1) * hertz / static_cast<double>(rate));
    if (!(bin >= 0 && bin < static_cast<double>(rows)))
      throw Error(ErrorKind::shape, "a mel frequency of " + std::to_string(hertz) + " Hz lies outside the spectrum at " +
                                        std::to_string(rate) + " samples a second");
    at.push_back(static_cast<std::int64_t>(bin));
  }
  double* weights = result.data<double>();
  std::fill(weights, weights + rows * bins, 0.0);
  for (std::int64_t i = 0; i < bins; ++i) {
    const std::int64_t left = at[static_cast<std::size_t>(i)], middle = at[static_cast<std::size_t>(i + 1)],
                       right = at[static_cast<std::size_t>(i + 2)];
    if (left == middle) weights[middle * bins + i] = 1;
    for (std::int64_t j = left; left != middle && j <= middle; ++j)
      weights[j * bins + i] = static_cast<double>(j - left) / static_cast<double>(middle - left);
    for (std::int64_t j = middle; j < right; ++j)
      weights[j * bins + i] = static_cast<double>(right - j) / static_cast<double>(right - middle);
  }
  return {cast(emitter, emitter.constant(result), target_dtype({{"to", attributes.get_int("output_datatype", 1)}}))};
}

}  // namespace walle

// Resize, one axis after the other: nearest is a Gather, linear and cubic are a Resample with indices and weights known while
// planning. AffineGrid: a matrix product with a constant grid.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>

#include "core/truncate.h"
#include "geometry/composite/composite.h"

namespace walle {

namespace {

using Ref = Emitter::Ref;

// One axis of a Resize.
struct Scaling {
  std::int64_t in, out;
  double scale;
  double roi_begin = 0, roi_end = 1;
};

// Return the size of an axis of `in` elements by a scale. In float, as shape inference of ONNX and ONNX Runtime: 10 by the float
// 0.7 are 7 elements, and 6 in double.
std::int64_t scaled_size(double scale, std::int64_t in) {
  return static_cast<std::int64_t>(std::floor(static_cast<float>(scale) * static_cast<float>(in)));
}

// Return the position of output `o` in the input. Quotients by a scale are computed in float, as ONNX Runtime does: by the float
// 1/3, output 1 is at 3, and not below it.
double original(const std::string& mode, const Scaling& axis, std::int64_t o) {
  const double in = static_cast<double>(axis.in), at = static_cast<double>(o), out = axis.scale * in;
  const float scale = static_cast<float>(axis.scale), place = static_cast<float>(o);
  if (mode == "align_corners") return out == 1 ? 0 : at * (in - 1) / (out - 1);
  if (mode == "asymmetric") return place / scale;
  if (mode == "pytorch_half_pixel") return axis.out == 1 ? 0.0F : (place + 0.5F) / scale - 0.5F;
  if (mode == "half_pixel") return (place + 0.5F) / scale - 0.5F;
  if (mode == "half_pixel_symmetric") {
    const float adjustment = static_cast<float>(axis.out) / (scale * static_cast<float>(axis.in));
    return static_cast<float>(axis.in) / 2 * (1 - adjustment) + (place + 0.5F) / scale - 0.5F;
  }
  if (mode == "tf_crop_and_resize") {
    const double begin = axis.roi_begin * (in - 1), span = (axis.roi_end - axis.roi_begin) * (in - 1);
    return out == 1 ? begin + span / 2 : begin + at * span / (out - 1);
  }
  throw Error(ErrorKind::unsupported, "Resize with coordinate_transformation_mode '" + mode + "'");
}

std::int64_t nearest(const std::string& mode, double at) {
  if (mode == "round_prefer_floor") return truncate_to_int64(std::ceil(at - 0.5));
  if (mode == "round_prefer_ceil") return truncate_to_int64(std::floor(at + 0.5));
  if (mode == "floor") return truncate_to_int64(std::floor(at));
  if (mode == "ceil") return truncate_to_int64(std::ceil(at));
  throw Error(ErrorKind::unsupported, "Resize with nearest_mode '" + mode + "'");
}

// A kernel over distances: zero from `reach` on. Antialias widens it when the axis shrinks.
struct Filter {
  double reach;
  std::function<double(double)> weight;
};

Filter filter_of(const std::string& mode, double a) {
  if (mode == "linear") return {1, [](double x) { return std::max(0.0, 1 - x); }};
  if (mode == "cubic")
    return {2, [a](double x) {
              return x <= 1 ? ((a + 2) * x - (a + 3)) * x * x + 1 : x < 2 ? ((a * x - 5 * a) * x + 8 * a) * x - 4 * a : 0.0;
            }};
  throw Error(ErrorKind::unsupported, "Resize mode '" + mode + "'; known are nearest, linear and cubic");
}

class Resizing {
 public:
  Resizing(Emitter& emitter, const Attributes& attributes)
      : emitter_(emitter),
        mode_(attributes.get_string("mode", "nearest")),
        coordinates_(attributes.get_string("coordinate_transformation_mode", "half_pixel")),
        rounding_(attributes.get_string("nearest_mode", "round_prefer_floor")),
        antialias_(attributes.get_int("antialias", 0) != 0),
        exclude_outside_(attributes.get_int("exclude_outside", 0) != 0),
        cubic_(attributes.get_float("cubic_coeff_a", -0.75)) {
    if (mode_ != "nearest") filter_of(mode_, cubic_);
    if (antialias_ && mode_ == "nearest") throw Error(ErrorKind::unsupported, "Resize with antialias and mode 'nearest'");
  }

  bool crops() const { return coordinates_ == "tf_crop_and_resize"; }

  Ref along(Ref value, std::size_t axis, const Scaling& scaling) const {
    const auto at = static_cast<std::int64_t>(axis);
    if (mode_ == "nearest") {
      Tensor places = Tensor::empty(DType::i64, {scaling.out});
      for (std::int64_t o = 0; o < scaling.out; ++o)
        places.data<std::int64_t>()[o] =
            std::clamp<std::int64_t>(nearest(rounding_, original(coordinates_, scaling, o)), 0, scaling.in - 1);
      return emitter_.one("Gather", {value, emitter_.constant(std::move(places))}, {{"axis", at}});
    }
    const Filter filter = filter_of(mode_, cubic_);
    const double shrink = antialias_ ? std::min(scaling.scale, 1.0) : 1.0;
    const auto half = scaling.out == 0 ? 1 : truncate_to_int64(std::ceil(filter.reach / shrink));
    const std::int64_t taps = 2 * half;
    const DType dtype = emitter_.operand(value).dtype;
    Tensor places = Tensor::empty(DType::i64, {scaling.out, taps}), weights = Tensor::empty(dtype, {scaling.out, taps});
    for (std::int64_t o = 0; o < scaling.out; ++o) {
      const double x = original(coordinates_, scaling, o);
      const auto first = truncate_to_int64(std::ceil(x)) - half;  // the neighbour to the left of x is the last of the first half
      std::vector<double> row(static_cast<std::size_t>(taps));
      double total = 0;
      for (std::int64_t t = 0; t < taps; ++t) {
        const std::int64_t place = first + t;
        double weight = filter.weight(std::fabs(x - static_cast<double>(place)) * shrink);
        if (exclude_outside_ && (place < 0 || place >= scaling.in)) weight = 0;
        row[static_cast<std::size_t>(t)] = weight;
        total += weight;
        places.data<std::int64_t>()[o * taps + t] = std::clamp<std::int64_t>(place, 0, scaling.in - 1);
      }
      for (std::int64_t t = 0; t < taps; ++t) {
        const double weight = row[static_cast<std::size_t>(t)] / total;
        if (dtype == DType::f64)
          weights.data<double>()[o * taps + t] = weight;
        else
          weights.data<float>()[o * taps + t] = static_cast<float>(weight);
      }
    }
    return emitter_.one("Resample", {value, emitter_.constant(std::move(places)), emitter_.constant(std::move(weights))},
                        {{"axis", at}});
  }

  // Return the outputs of a cropped axis that lie outside the input, as a mask to broadcast; kAbsent if all lie inside.
  Ref outside(std::size_t rank, std::size_t axis, const Scaling& scaling) const {
    Dims shape(rank, 1);
    shape[axis] = scaling.out;
    Tensor mask = Tensor::empty(DType::b8, shape);
    bool any = false;
    for (std::int64_t o = 0; o < scaling.out; ++o) {
      const double x = original(coordinates_, scaling, o);
      any |= mask.data<bool>()[o] = x < 0 || x > static_cast<double>(scaling.in - 1);
    }
    return any ? emitter_.constant(std::move(mask)) : Emitter::kAbsent;
  }

 private:
  Emitter& emitter_;
  std::string mode_, coordinates_, rounding_;
  bool antialias_, exclude_outside_;
  double cubic_;
};

// Read a list of numbers in any numeric dtype.
std::vector<double> float_numbers(Emitter& emitter, Ref ref, const char* what) {
  Ref wide = ref;
  if (emitter.operand(ref).dtype != DType::f64) wide = emitter.one("Cast", {ref}, {{"to", std::string("float64")}});
  const Tensor value = emitter.value(wide, what);
  return {value.data<double>(), value.data<double>() + value.size()};
}

}  // namespace

// Inputs: x, roi, scales, sizes; an empty one counts as absent.
std::vector<Ref> decompose_resize(Emitter& emitter, std::span<const Ref> inputs, const Attributes& attributes, int) {
  const Operand input = emitter.operand(inputs[0]);
  const Dims x = input.shape;
  const DType dtype = input.dtype;
  const auto given = [&](std::size_t i) {
    return i < inputs.size() && inputs[i] != Emitter::kAbsent && element_count(emitter.operand(inputs[i]).shape) > 0;
  };
  Dims axes = attributes.get_ints("axes").value_or(Dims{});
  if (!attributes.has("axes"))
    for (std::size_t i = 0; i < x.size(); ++i) axes.push_back(static_cast<std::int64_t>(i));
  const Resizing resizing(emitter, attributes);
  std::vector<Scaling> scalings;
  for (const std::int64_t dim : x) scalings.push_back({dim, dim, 1});
  const auto count_of = [&](const std::vector<double>& list, std::size_t each, const char* what) {
    if (list.size() != each * axes.size())
      throw Error(ErrorKind::shape, std::string("Resize of ") + to_string(x) + ": " + what + " has " +
                                        std::to_string(list.size()) + " numbers, not " + std::to_string(each * axes.size()));
  };
  constexpr double kLimit = 1e9;
  if (given(3)) {
    const std::vector<double> sizes = float_numbers(emitter, inputs[3], "'sizes'");
    count_of(sizes, 1, "sizes");
    const std::string policy = attributes.get_string("keep_aspect_ratio_policy", "stretch");
    double common = 0;
    for (std::size_t i = 0; i < axes.size(); ++i) {
      Scaling& axis = scalings[normal_axis(axes[i], x.size())];
      if (!(sizes[i] >= 0 && sizes[i] < kLimit)) throw Error(ErrorKind::shape, "Resize to a size of " + std::to_string(sizes[i]));
      axis.out = static_cast<std::int64_t>(sizes[i]);
      axis.scale = sizes[i] / static_cast<double>(axis.in);
      if (policy == "not_larger") common = i == 0 ? axis.scale : std::min(common, axis.scale);
      if (policy == "not_smaller") common = std::max(common, axis.scale);
    }
    if (policy != "stretch" && policy != "not_larger" && policy != "not_smaller")
      throw Error(ErrorKind::unsupported, "Resize with keep_aspect_ratio_policy '" + policy + "'");
    for (std::size_t i = 0; i < axes.size() && policy != "stretch"; ++i) {
      Scaling& axis = scalings[normal_axis(axes[i], x.size())];
      axis.scale = common;
      const double size = common * static_cast<double>(axis.in) + 0.5;
      if (!(size < kLimit)) throw Error(ErrorKind::shape, "Resize of " + to_string(x) + " to a size of " + std::to_string(size));
      axis.out = static_cast<std::int64_t>(size);
    }
  } else if (given(2)) {
    const std::vector<double> scales = float_numbers(emitter, inputs[2], "'scales'");
    count_of(scales, 1, "scales");
    for (std::size_t i = 0; i < axes.size(); ++i) {
      Scaling& axis = scalings[normal_axis(axes[i], x.size())];
      if (!(scales[i] > 0 && scales[i] * static_cast<double>(axis.in) < kLimit))
        throw Error(ErrorKind::shape, "Resize by " + std::to_string(scales[i]));
      axis.scale = scales[i];
      axis.out = scaled_size(scales[i], axis.in);
    }
  } else {
    throw Error(ErrorKind::model, "Resize needs scales or sizes");
  }
  if (resizing.crops()) {
    if (!given(1)) throw Error(ErrorKind::model, "Resize by tf_crop_and_resize needs a roi");
    const std::vector<double> roi = float_numbers(emitter, inputs[1], "'roi'");
    count_of(roi, 2, "roi numbers");
    for (const double edge : roi)
      if (!(std::fabs(edge) < kLimit)) throw Error(ErrorKind::shape, "Resize of a roi at " + std::to_string(edge));
    for (std::size_t i = 0; i < axes.size(); ++i) {
      Scaling& axis = scalings[normal_axis(axes[i], x.size())];
      axis.roi_begin = roi[i];
      axis.roi_end = roi[i + axes.size()];
    }
  }
  const bool nearest = attributes.get_string("mode", "nearest") == "nearest";
  const bool convert = !nearest && dtype != DType::f32 && dtype != DType::f64;
  Ref value = convert ? emitter.one("Cast", {inputs[0]}, {{"to", std::string("float32")}}) : inputs[0];
  std::vector<Ref> masks;
  for (std::size_t axis = 0; axis < x.size(); ++axis) {
    const Scaling& scaling = scalings[axis];
    const bool whole = scaling.in == scaling.out && scaling.scale == 1 &&
                       (!resizing.crops() || (scaling.roi_begin == 0 && scaling.roi_end == 1));
    if (whole) continue;
    if (scaling.in == 0 && scaling.out > 0) throw Error(ErrorKind::shape, "Resize of " + to_string(x) + ", which has no element");
    value = resizing.along(value, axis, scaling);
    if (resizing.crops())
      if (const Ref mask = resizing.outside(x.size(), axis, scaling); mask != Emitter::kAbsent) masks.push_back(mask);
  }
  if (convert) value = emitter.one("Cast", {value}, {{"to", std::string(dtype_name(dtype))}});
  if (!masks.empty()) {
    Ref number = emitter.number(attributes.get_float("extrapolation_value", 0.0), dtype == DType::f64 ? DType::f64 : DType::f32);
    if (emitter.operand(number).dtype != dtype) number = emitter.one("Cast", {number}, {{"to", std::string(dtype_name(dtype))}});
    for (const Ref mask : masks) value = emitter.one("Where", {mask, number, value});
  }
  return {value == inputs[0] ? emitter.one("Identity", {value}) : value};
}

// Inputs: theta [batch, 2, 3] or [batch, 3, 4], and the size of the tensor to sample.
std::vector<Ref> decompose_affine_grid(Emitter& emitter, std::span<const Ref> inputs, const Attributes& attributes, int) {
  const Operand input = emitter.operand(inputs[0]);
  const Dims theta = input.shape;
  const DType dtype = input.dtype;
  const Tensor given = emitter.value(inputs[1], "'size'");
  const Operand operand{given.dtype(), given.shape(), &given, false};
  const Dims size = required_numbers(std::span(&operand, 1), 0, Attributes(), "size");
  const std::size_t rank = size.size() < 2 ? 0 : size.size() - 2;
  const auto axes = static_cast<std::int64_t>(rank);
  if ((rank != 2 && rank != 3) || theta != Dims{size[0], axes, axes + 1})
    throw Error(ErrorKind::shape, "AffineGrid of " + to_string(theta) + " for a size of " + to_string(size));
  if (dtype != DType::f32 && dtype != DType::f64)
    throw Error(ErrorKind::dtype, "AffineGrid does not support " + std::string(dtype_name(dtype)));
  const Dims space(size.begin() + 2, size.end()), strides = contiguous_strides(space);
  const std::int64_t places = element_count(space);
  const bool align = attributes.get_int("align_corners", 0) != 0;
  Tensor grid = Tensor::empty(dtype, {axes + 1, places});  // rows x, y, (z,) 1
  for (std::int64_t row = 0; row <= axes; ++row)
    for (std::int64_t place = 0; place < places; ++place) {
      double value = 1;
      if (row < axes) {
        const std::size_t axis = rank - 1 - static_cast<std::size_t>(row);
        const double length = static_cast<double>(space[axis]), at = static_cast<double>(place / strides[axis] % space[axis]);
        value = align ? (length > 1 ? -1 + 2 * at / (length - 1) : -1) : -1 + (2 * at + 1) / length;
      }
      if (dtype == DType::f64)
        grid.data<double>()[row * places + place] = value;
      else
        grid.data<float>()[row * places + place] = static_cast<float>(value);
    }
  const Ref moved = emitter.one("Transpose", {emitter.one("MatMul", {inputs[0], emitter.constant(std::move(grid))})},
                                {{"perm", Dims{0, 2, 1}}});
  Dims result{size[0]};
  result.insert(result.end(), space.begin(), space.end());
  result.push_back(axes);
  return {emitter.one("Reshape", {moved}, {{"shape", result}, {"allowzero", std::int64_t{1}}})};
}

}  // namespace walle

// ImageResize: an image in another size, by OpenCV's interpolations. Rows are resampled along x once each and kept in a ring
// while the rows of the result that need them are joined from them.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "atomic/image/image.h"

namespace walle {

namespace {

enum class Way : std::uint8_t { nearest, nearest_exact, linear, linear_exact, cubic, area, lanczos4, pyramid };

Way way_of(const Attributes& attributes) {
  const std::string name = attributes.get_string("interpolation", "linear");
  constexpr std::string_view names[] = {"nearest", "nearest_exact", "linear",   "linear_exact",
                                        "cubic",   "area",          "lanczos4", "pyramid"};
  const auto* at = std::find(std::begin(names), std::end(names), name);
  if (at == std::end(names)) throw Error(ErrorKind::unsupported, "ImageResize has no interpolation '" + name + "'");
  return static_cast<Way>(at - std::begin(names));
}

// The taps of every place of one axis of the result.
struct Axis {
  int taps = 1;
  std::vector<std::int32_t> places;
  std::vector<float> weights;
  std::vector<std::int16_t> whole;

  AxisTaps view() const noexcept { return {places.data(), weights.data(), whole.data(), taps}; }

  // Tap by tap, as kernels along a row take it.
  Axis by_tap() const {
    Axis turned{taps, places, weights, whole};
    const std::size_t each = static_cast<std::size_t>(taps), count = places.size() / each;
    for (std::size_t i = 0; i < places.size(); ++i) {
      const std::size_t to = i % each * count + i / each;
      turned.places[to] = places[i];
      turned.weights[to] = weights[i];
      if (!whole.empty()) turned.whole[to] = whole[i];
    }
    return turned;
  }
};

void set_taps(Axis& axis, std::int64_t at, std::int64_t first, const double* weights, std::int64_t size) {
  for (int t = 0; t < axis.taps; ++t) {
    const auto index = static_cast<std::size_t>(at * axis.taps + t);
    axis.places[index] = static_cast<std::int32_t>(std::clamp<std::int64_t>(first + t, 0, size - 1));
    axis.weights[index] = static_cast<float>(weights[t]);
  }
}

void interpolating(double part, int taps, double* weights) {
  if (taps == 2) {
    weights[0] = 1 - part;
    weights[1] = part;
  } else if (taps == 4) {
    constexpr double a = -0.75;
    weights[0] = ((a * (part + 1) - 5 * a) * (part + 1) + 8 * a) * (part + 1) - 4 * a;
    weights[1] = ((a + 2) * part - (a + 3)) * part * part + 1;
    weights[2] = ((a + 2) * (1 - part) - (a + 3)) * (1 - part) * (1 - part) + 1;
    weights[3] = 1 - weights[0] - weights[1] - weights[2];
  } else {
    double sum = 0;
    for (int i = 0; i < 8; ++i) {
      const double x = 3.14159265358979323846 * (part + 3 - i);
      weights[i] = std::abs(x) < 1e-6 ? 1 : std::sin(x) * std::sin(x / 4) / (x * x / 4);
      sum += weights[i];
    }
    for (int i = 0; i < 8; ++i) weights[i] /= sum;
  }
}

// Weighted parts of the pixels that a pixel of a smaller image covers.
Axis covering(std::int64_t from, std::int64_t to, double scale) {
  Axis axis;
  axis.taps = static_cast<int>(std::ceil(scale)) + 1;
  axis.places.assign(static_cast<std::size_t>(to * axis.taps), 0);
  axis.weights.assign(static_cast<std::size_t>(to * axis.taps), 0.0f);
  for (std::int64_t i = 0; i < to; ++i) {
    const double begin = std::min(static_cast<double>(i) * scale, static_cast<double>(from - 1)), end = begin + scale;
    const double cell = std::min(scale, static_cast<double>(from) - begin);
    std::int64_t first = static_cast<std::int64_t>(std::ceil(begin)), last = static_cast<std::int64_t>(std::floor(end));
    last = std::min(last, from - 1);
    first = std::min(first, last);
    auto slot = static_cast<std::size_t>(i * axis.taps);
    const auto put = [&](std::int64_t place, double weight) {
      if (slot >= static_cast<std::size_t>((i + 1) * axis.taps)) return;
      axis.places[slot] = static_cast<std::int32_t>(place);
      axis.weights[slot++] = static_cast<float>(weight);
    };
    if (static_cast<double>(first) - begin > 1e-3) put(first - 1, (static_cast<double>(first) - begin) / cell);
    for (std::int64_t place = first; place < last; ++place) put(place, 1 / cell);
    if (end - static_cast<double>(last) > 1e-3) put(last, std::min(std::min(end - static_cast<double>(last), 1.0), cell) / cell);
    // The rest have no weight; they repeat a place at hand.
    for (const auto used = slot; slot < static_cast<std::size_t>((i + 1) * axis.taps); ++slot)
      axis.places[slot] = axis.places[used - 1];
  }
  return axis;
}

// Twice as many pixels, between each two of which one is filled in: weights 1, 6, 1 and 4, 4 of eighths. OpenCV mirrors the image
// about its first pixel and repeats the last.
Axis doubled(std::int64_t from) {
  Axis axis;
  axis.taps = 3;
  for (std::int64_t i = 0; i < from; ++i)
    for (const auto& weights : {std::array{1.0F, 6.0F, 1.0F}, std::array{0.0F, 4.0F, 4.0F}})
      for (int t = 0; t < 3; ++t) {
        const std::int64_t at = i + t - 1, mirrored = std::min<std::int64_t>(1, from - 1);
        axis.places.push_back(static_cast<std::int32_t>(at < 0 ? mirrored : std::min(at, from - 1)));
        axis.weights.push_back(weights[static_cast<std::size_t>(t)] / 8);
        axis.whole.push_back(static_cast<std::int16_t>(weights[static_cast<std::size_t>(t)]));
      }
  return axis;
}

// Columns beyond the first and last pixel are those pixels; rows keep their two weights, on one pixel twice, whose products are
// rounded one by one, as OpenCV's are.
Axis axis_of(Way way, std::int64_t from, std::int64_t to, double scale, bool shrinks, bool is_rows, bool bytes) {
  if (way == Way::area && shrinks) return covering(from, to, scale);
  if (way == Way::pyramid) return doubled(from);
  const double ratio = static_cast<double>(to) / static_cast<double>(from), inverse = scale == 1 / ratio ? ratio : 1 / scale;
  Axis axis;
  axis.taps = way == Way::cubic ? 4 : way == Way::lanczos4 ? 8 : 2;
  axis.places.resize(static_cast<std::size_t>(to * axis.taps));
  axis.weights.resize(static_cast<std::size_t>(to * axis.taps));
  for (std::int64_t i = 0; i < to; ++i) {
    double weights[8];
    std::int64_t first;
    double part;
    if (way == Way::area) {
      first = static_cast<std::int64_t>(std::floor(static_cast<double>(i) * scale));
      // In OpenCV's precision, where what is all but a whole pixel is none.
      part = static_cast<double>(static_cast<float>(static_cast<double>(i + 1) - static_cast<double>(first + 1) * inverse));
      part = part <= 0 ? 0 : part - std::floor(part);
    } else {
      const double exact = (static_cast<double>(i) + 0.5) * scale - 0.5;
      const double at =
          bytes && way == Way::linear ? static_cast<double>(static_cast<float>(exact)) : exact;  // OpenCV's precision
      first = static_cast<std::int64_t>(std::floor(at));
      part = at - static_cast<double>(first);
    }
    if (axis.taps == 2 && !(is_rows && way == Way::linear)) {
      if (first < 0) first = 0, part = 0;
      if (first >= from - 1) first = from - 1, part = 0;
    }
    interpolating(part, axis.taps, weights);
    set_taps(axis, i, first - axis.taps / 2 + 1, weights, from);
  }
  const double one = way == Way::linear_exact ? 256 : 2048;
  axis.whole.resize(axis.weights.size());
  for (std::size_t i = 0; i < axis.weights.size(); ++i)
    axis.whole[i] = static_cast<std::int16_t>(std::lrint(static_cast<double>(axis.weights[i]) * one));
  if (way == Way::linear_exact)
    for (std::size_t i = 0; i < axis.whole.size(); i += 2) axis.whole[i] = static_cast<std::int16_t>(256 - axis.whole[i + 1]);
  return axis;
}

class NearestStep final : public Step {
 public:
  NearestStep(const StepRequest& request, bool exact)
      : from_(image_shape("ImageResize", request.inputs[0].shape)), to_(image_shape("ImageResize", request.result.shape)) {
    size_ = static_cast<std::int64_t>(item_size(request.result.dtype)) * from_.channels;
    pick_ = request.table.image->pick_row;
    columns_ = places(from_.width, to_.width, exact, request.attributes.get_float("scale_x", 0));
    rows_ = places(from_.height, to_.height, exact, request.attributes.get_float("scale_y", 0));
  }
  void run(std::byte* const* inputs, std::byte* output, std::byte*) const noexcept override {
    const std::int64_t row = to_.width * size_;
    for (std::int64_t y = 0; y < to_.height; ++y, output += row) {
      const auto at = static_cast<std::size_t>(y);
      if (y > 0 && rows_[at] == rows_[at - 1])
        std::memcpy(output, output - row, static_cast<std::size_t>(row));
      else
        pick_(columns_.data(), size_, inputs[0] + rows_[at] * from_.width * size_, output, to_.width);
    }
  }

 private:
  static std::vector<std::int32_t> places(std::int64_t from, std::int64_t to, bool exact, double scale) {
    std::vector<std::int32_t> result(static_cast<std::size_t>(to));
    if (scale <= 0) scale = 1 / (static_cast<double>(to) / static_cast<double>(from));  // OpenCV's rounding
    for (std::int64_t i = 0; i < to; ++i) {
      const std::int64_t at =
          exact ? (2 * i + 1) * from / (2 * to) : static_cast<std::int64_t>(std::floor(static_cast<double>(i) * scale));
      result[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(std::clamp<std::int64_t>(at, 0, from - 1));
    }
    return result;
  }

  ImageShape from_, to_;
  std::int64_t size_;
  std::vector<std::int32_t> columns_, rows_;
  PickRowFn pick_;
};

// Exactly half as large either way: the mean of four pixels.
class HalfStep final : public Step {
 public:
  explicit HalfStep(const StepRequest& request)
      : from_(image_shape("ImageResize", request.inputs[0].shape)), item_(item_size(request.result.dtype)) {
    halve_ = request.table.image->halve_rows[pixel_index("ImageResize", request.result.dtype)];
  }
  void run(std::byte* const* inputs, std::byte* output, std::byte*) const noexcept override {
    const std::size_t row = static_cast<std::size_t>(from_.row()) * item_;
    for (std::int64_t y = 0; y < from_.height / 2; ++y)
      halve_(inputs[0] + static_cast<std::size_t>(2 * y) * row, inputs[0] + static_cast<std::size_t>(2 * y + 1) * row,
             static_cast<int>(from_.channels), output + static_cast<std::size_t>(y) * (row / 2), from_.width / 2);
  }

 private:
  ImageShape from_;
  std::size_t item_;
  HalveRowsFn halve_;
};

class ResizeStep final : public Step {
 public:
  ResizeStep(const StepRequest& request, Way way)
      : from_(image_shape("ImageResize", request.inputs[0].shape)),
        to_(image_shape("ImageResize", request.result.shape)),
        images_(request.table.image),
        pixel_(pixel_index("ImageResize", request.result.dtype)),
        item_(item_size(request.result.dtype)) {
    const auto scale = [&](const char* name, std::int64_t from, std::int64_t to) {
      const double given = request.attributes.get_float(name, 0);
      return given > 0 ? given : 1 / (static_cast<double>(to) / static_cast<double>(from));
    };
    const double scale_x = scale("scale_x", from_.width, to_.width), scale_y = scale("scale_y", from_.height, to_.height);
    const bool shrinks = scale_x >= 1 && scale_y >= 1;
    columns_ = axis_of(way, from_.width, to_.width, scale_x, shrinks, false, pixel_ == 0).by_tap();
    rows_ = axis_of(way, from_.height, to_.height, scale_y, shrinks, true, pixel_ == 0);
    whole_ = pixel_ == 0 && !(way == Way::area && shrinks) && way != Way::lanczos4;
    const bool linear = way == Way::linear || way == Way::area;
    bits_ = way == Way::linear_exact ? 16 : way == Way::pyramid ? 6 : 22;
    resample_ = !whole_ ? images_->resample_row[pixel_] : linear ? images_->resample_short : images_->resample_bytes;
    join_ = linear ? images_->join_linear_bytes : images_->join_bytes;
    // Rows of whole numbers are planes of the channels, which are put together at last.
    planes_ = whole_ && to_.channels > 1 && to_.channels <= 4;
    row_bytes_ = lines(static_cast<std::size_t>(to_.row()) * (whole_ && linear ? 2 : 4));
    plane_bytes_ = planes_ ? lines(static_cast<std::size_t>(to_.row())) : 0;
    // Which rows are at hand is kept behind the rows themselves.
    scratch_bytes_ =
        plane_bytes_ + static_cast<std::size_t>(rows_.taps) * (row_bytes_ + sizeof(std::int64_t) + 2 * sizeof(void*));
  }

  void run(std::byte* const* inputs, std::byte* output, std::byte* scratch) const noexcept override {
    const auto taps = static_cast<std::size_t>(rows_.taps);
    std::byte* joined = scratch;
    scratch += plane_bytes_;
    auto* held = reinterpret_cast<std::int64_t*>(scratch + taps * row_bytes_);
    auto** rows = reinterpret_cast<const void**>(held + taps);
    std::fill(held, held + taps, -1);
    const std::size_t row_in = static_cast<std::size_t>(from_.row()) * item_,
                      row_out = static_cast<std::size_t>(to_.row()) * item_;
    for (std::int64_t y = 0; y < to_.height; ++y, output += row_out) {
      const std::int32_t* places = rows_.places.data() + y * rows_.taps;
      for (std::size_t t = 0; t < taps; ++t) {
        // Rows of one result are neighbours, so that a ring of as many as there are taps holds them all.
        const std::size_t slot = static_cast<std::size_t>(places[t]) % taps;
        std::byte* row = scratch + slot * row_bytes_;
        rows[t] = row;
        if (held[slot] == places[t]) continue;
        held[slot] = places[t];
        resample_(columns_.view(), static_cast<int>(from_.channels), inputs[0] + static_cast<std::size_t>(places[t]) * row_in,
                  row, to_.width);
      }
      if (whole_)
        join_(rows, rows_.whole.data() + y * rows_.taps, rows_.taps, bits_, planes_ ? joined : output, to_.row());
      else
        images_->join_rows[pixel_](reinterpret_cast<const float* const*>(rows), rows_.weights.data() + y * rows_.taps, rows_.taps,
                                   output, to_.row());
      if (planes_) images_->weave(joined, to_.width, static_cast<int>(to_.channels), output, to_.width);
    }
  }

 private:
  ImageShape from_, to_;
  const ImageTable* images_;
  std::size_t pixel_, item_, row_bytes_ = 0, plane_bytes_ = 0;
  Axis columns_, rows_;
  bool whole_ = false, planes_ = false;
  int bits_ = 22;
  ResampleRowFn resample_ = nullptr;
  JoinWholeRowsFn join_ = nullptr;
};

}  // namespace

// Attributes: height, width; interpolation; scale_x and scale_y, input pixels for one of the result, where they are not the ratio
// of the sizes.
TensorType infer_image_resize(std::span<const Operand> operands, const Attributes& attributes) {
  image_shape("ImageResize", operands[0].shape);
  const std::int64_t height = attributes.get_int("height", 0), width = attributes.get_int("width", 0);
  if (height < 1 || width < 1)
    throw Error(ErrorKind::shape,
                "ImageResize to a width of " + std::to_string(width) + " and a height of " + std::to_string(height));
  const Way way = way_of(attributes);
  if (way != Way::nearest && way != Way::nearest_exact) pixel_index("ImageResize", operands[0].dtype);
  if (way == Way::pyramid && (height != 2 * operands[0].shape[0] || width != 2 * operands[0].shape[1]))
    throw Error(ErrorKind::shape, "ImageResize by the pyramid gives an image twice as large either way");
  const Dims shape = resized_shape(operands[0].shape, height, width);
  image_shape("ImageResize", shape);
  return {operands[0].dtype, shape};
}

std::unique_ptr<Step> make_image_resize(const StepRequest& request) {
  const Way way = way_of(request.attributes);
  if (way == Way::nearest || way == Way::nearest_exact) return std::make_unique<NearestStep>(request, way == Way::nearest_exact);
  const Dims &from = request.inputs[0].shape, &to = request.result.shape;
  const bool half = from[0] == 2 * to[0] && from[1] == 2 * to[1] && request.attributes.get_float("scale_x", 2) == 2 &&
                    request.attributes.get_float("scale_y", 2) == 2;
  if (half && (way == Way::area || way == Way::linear)) return std::make_unique<HalfStep>(request);
  return std::make_unique<ResizeStep>(request, way);
}

}  // namespace walle

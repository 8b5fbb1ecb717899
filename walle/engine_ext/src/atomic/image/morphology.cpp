// Morphology: the minimum or maximum over a window of any shape around every pixel (erosion and dilation).
#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "atomic/image/image.h"
#include "core/stop.h"

namespace walle {

namespace {

// Returns a pixel of the constant border: the attribute `value`, or by default the value that is never the extreme.
std::vector<std::byte> border_pixel(DType dtype, std::int64_t channels, bool greatest, const Attributes& attributes) {
  std::vector<std::byte> pixel(static_cast<std::size_t>(channels) * item_size(dtype));
  const auto given = attributes.get_floats("value");
  const auto fill = [&]<class T>(T) {
    using Limit = std::numeric_limits<T>;
    const T neutral = greatest ? Limit::lowest() : Limit::max();
    for (std::int64_t c = 0; c < channels; ++c) {
      const double number =
          given && !given->empty() ? (*given)[std::min<std::size_t>(static_cast<std::size_t>(c), given->size() - 1)] : 0;
      const T value =
          given && !given->empty()
              ? static_cast<T>(std::clamp(number, static_cast<double>(Limit::lowest()), static_cast<double>(Limit::max())))
              : neutral;
      std::memcpy(pixel.data() + static_cast<std::size_t>(c) * sizeof(T), &value, sizeof(T));
    }
  };
  switch (dtype) {
    case DType::u8: fill(std::uint8_t{}); break;
    case DType::u16: fill(std::uint16_t{}); break;
    case DType::i16: fill(std::int16_t{}); break;
    default: fill(float{}); break;
  }
  return pixel;
}

// Keeps the padded rows of the window in scratch memory. For a rectangle each row holds the extremes along x. For another shape,
// runs of adjacent pixels are read from rows of extremes over runs of that length, where that is less work.
class MorphologyStep final : public HostStep {
 public:
  explicit MorphologyStep(const StepRequest& request) : input_(image_shape("Morphology", request.inputs[0].shape)) {
    const Attributes& attributes = request.attributes;
    const DType dtype = request.result.dtype;
    const bool greatest = attributes.get_string("mode", "least") == "greatest";
    const std::size_t index = signed_pixel_index("Morphology", dtype);
    kernel_ = greatest ? request.table.image->greatest[index] : request.table.image->least[index];
    width_ = attributes.get_int("width", 1);
    height_ = attributes.get_int("height", 1);
    if (const auto form = attributes.get_ints("form"))
      find_runs(*form);
    else
      rectangle_ = true;
    anchor_y_ = anchor_of("Morphology", attributes, "anchor_y", height_);
    frame_.border = border_of("Morphology", attributes);
    frame_.width = input_.width;
    frame_.left = anchor_of("Morphology", attributes, "anchor_x", width_);
    frame_.right = width_ - 1 - frame_.left;
    item_ = item_size(dtype);
    frame_.pixel = static_cast<std::size_t>(input_.channels) * item_;
    fill_ = border_pixel(dtype, input_.channels, greatest, attributes);
    ring_bytes_ = cache_aligned(frame_.bytes());
    // Scratch: the ring, a row of the border, the row in each slot, and pointers to taps. A rectangle has two blocks of rows and
    // a row of running extremes instead of the ring.
    const std::int64_t rows = rectangle_ ? 2 * height_ + 1 : height_ * static_cast<std::int64_t>(run_lengths_.size());
    border_offset_ = static_cast<std::size_t>(rows) * ring_bytes_;
    slot_rows_offset_ = border_offset_ + ring_bytes_;
    scratch_bytes_ =
        slot_rows_offset_ + static_cast<std::size_t>(height_) * sizeof(std::int64_t) + (taps_.size() + 2) * sizeof(void*);
  }

  void run(std::byte* const* inputs, std::byte* output, std::byte* scratch) const noexcept override {
    frame_.make_constant(fill_.data(), scratch + border_offset_);
    rectangle_ ? run_rectangle(inputs[0], output, scratch) : run_form(inputs[0], output, scratch);
  }

 private:
  // A run of adjacent pixels of the shape: run_lengths_[length_index] pixels from column dx of the window's row dy.
  struct Tap {
    std::int64_t dy, dx;
    std::size_t length_index;
  };

  // Estimates the cost of the extremes over runs of `length` pixels, in rows read and written.
  static std::int64_t run_cost(std::int64_t length) {
    if (length <= kMaxTaps) return length == 1 ? 0 : length + 1;
    std::int64_t cost = 0;
    for (std::int64_t done = 1; done < length; done *= 2) cost += 3;
    return cost;
  }

  void find_runs(std::span<const std::int64_t> form) {
    std::int64_t pixels = 0;
    for (std::int64_t dy = 0; dy < height_; ++dy)
      for (std::int64_t dx = 0, end; dx < width_; dx = end + 1) {
        const auto set = [&](std::int64_t x) { return x < width_ && form[static_cast<std::size_t>(dy * width_ + x)] != 0; };
        for (end = dx; set(end);) ++end;
        if (end == dx) continue;
        pixels += end - dx;
        auto known = std::find(run_lengths_.begin(), run_lengths_.end(), end - dx);
        if (known == run_lengths_.end()) known = run_lengths_.insert(known, end - dx);
        taps_.push_back({dy, dx, static_cast<std::size_t>(known - run_lengths_.begin())});
      }
    auto cost = static_cast<std::int64_t>(taps_.size());
    for (const std::int64_t length : run_lengths_) cost += run_cost(length);
    if (cost < pixels) return;
    taps_.clear();
    run_lengths_ = {1};
    for (std::int64_t dy = 0; dy < height_; ++dy)
      for (std::int64_t dx = 0; dx < width_; ++dx)
        if (form[static_cast<std::size_t>(dy * width_ + dx)] != 0) taps_.push_back({dy, dx, 0});
  }

  // Writes a row, with its padding, of the image or of its border (y outside the image).
  void make_row(const std::byte* input, std::int64_t y, const std::byte* border, std::byte* target) const noexcept {
    const std::int64_t row = border_source(frame_.border, y, input_.height);
    if (row < 0)
      std::memcpy(target, border, frame_.bytes());
    else
      frame_.make(input + static_cast<std::size_t>(row * input_.row()) * item_, fill_.data(), target);
  }

  static constexpr std::int64_t kMaxTaps = 5;  // taps that one pass of the kernel reads

  // Computes the extremes along the columns of a rectangle. Windows of more than kMaxTaps rows use van Herk's method: rows are
  // grouped in blocks of the window's height, so that a window is the end of one block and the beginning of the next, and the
  // extremes of both parts are updated row by row.
  void run_rectangle(const std::byte* input, std::byte* output, std::byte* scratch) const noexcept {
    const std::byte* border = scratch + border_offset_;
    const std::size_t row_bytes = static_cast<std::size_t>(input_.row()) * item_;
    std::byte* running = scratch + static_cast<std::size_t>(2 * height_) * ring_bytes_;
    const auto rows = static_cast<std::uint32_t>(2 * height_);
    const auto row_of = [&](std::int64_t row) { return scratch + static_cast<std::uint32_t>(row) % rows * ring_bytes_; };
    const auto extreme = [&](const std::byte* a, const std::byte* b, std::byte* result) {
      const void* taps[] = {a, b};
      kernel_(taps, 2, result, input_.row());
    };
    std::int64_t made = 0;  // rows that have been read, counted from the top of the first window
    const auto make = [&] {
      make_row(input, made - anchor_y_, border, row_of(made));
      reduce_runs(row_of(made), width_);
      return row_of(made++);
    };
    StopPoll poll;
    for (std::int64_t y = 0; y < input_.height; ++y, output += row_bytes) {
      if (!poll.proceed(input_.row() * 4)) return;
      if (height_ <= kMaxTaps) {
        const void* taps[kMaxTaps];
        while (made < y + height_) make();
        for (std::int64_t t = 0; t < height_; ++t) taps[t] = row_of(y + t);
        kernel_(taps, static_cast<int>(height_), output, input_.row());
        continue;
      }
      const std::int64_t row_in_block = y % height_;
      if (row_in_block == 0) {
        while (made < y + height_) make();
        for (std::int64_t t = height_ - 2; t >= 0; --t) extreme(row_of(y + t), row_of(y + t + 1), row_of(y + t));
        std::memcpy(output, row_of(y), row_bytes);
        continue;
      }
      const std::byte* next = make();
      if (row_in_block == 1)
        std::memcpy(running, next, row_bytes);
      else
        extreme(running, next, running);
      extreme(row_of(y), running, output);
    }
  }

  void run_form(const std::byte* input, std::byte* output, std::byte* scratch) const noexcept {
    auto* slot_rows = reinterpret_cast<std::int64_t*>(scratch + slot_rows_offset_);
    auto** taps = reinterpret_cast<const void**>(slot_rows + height_);
    std::fill(slot_rows, slot_rows + height_, std::numeric_limits<std::int64_t>::min());
    StopPoll poll;
    for (std::int64_t y = 0; y < input_.height; ++y, output += static_cast<std::size_t>(input_.row()) * item_) {
      if (!poll.proceed(input_.row() * static_cast<std::int64_t>(taps_.size()))) return;
      const std::int64_t top = ring_slot(y - anchor_y_, height_);
      const auto slot_of = [&](std::int64_t dy) { return top + dy < height_ ? top + dy : top + dy - height_; };
      // A slot has one row for each run length.
      const auto ring = [&](std::int64_t dy, std::size_t length_index) {
        return scratch + (static_cast<std::size_t>(slot_of(dy)) * run_lengths_.size() + length_index) * ring_bytes_;
      };
      for (std::int64_t dy = 0; dy < height_; ++dy) {
        const std::int64_t row = y + dy - anchor_y_;
        if (slot_rows[slot_of(dy)] == row) continue;
        slot_rows[slot_of(dy)] = row;
        make_row(input, row, scratch + border_offset_, ring(dy, 0));
        for (std::size_t i = run_lengths_.size(); i-- > 0;) {  // the first one last, because the others are copies of its row
          if (i > 0) std::memcpy(ring(dy, i), ring(dy, 0), frame_.bytes());
          reduce_runs(ring(dy, i), run_lengths_[i]);
        }
      }
      int count = 0;
      for (const Tap& tap : taps_)
        taps[count++] = ring(tap.dy, tap.length_index) + static_cast<std::size_t>(tap.dx) * frame_.pixel;
      kernel_(taps, count, output, input_.row());
    }
  }

  // Replaces each pixel of a padded row by the extreme of the run of `length` pixels that starts there, in passes over 2, 4, ...
  // pixels. A pass only reads pixels to the right, so that it can work in place.
  void reduce_runs(std::byte* row, std::int64_t length) const noexcept {
    const std::int64_t padded_width = frame_.left + frame_.width + frame_.right;
    if (length == 1) return;
    if (length <= kMaxTaps && length != 4) {  // four take two passes, the second of which reads the result of the first
      const void* taps[kMaxTaps];
      for (std::int64_t t = 0; t < length; ++t) taps[t] = row + static_cast<std::size_t>(t) * frame_.pixel;
      return kernel_(taps, static_cast<int>(length), row, (padded_width - length + 1) * input_.channels);
    }
    std::int64_t covered = 1;
    while (covered < length) {
      const std::int64_t step = std::min(covered, length - covered), count = padded_width - (covered + step - 1);
      const void* taps[] = {row, row + static_cast<std::size_t>(step) * frame_.pixel};
      kernel_(taps, 2, row, count * input_.channels);
      covered += step;
    }
  }

  ImageShape input_;
  RowFrame frame_;
  ExtremeFn kernel_;
  bool rectangle_ = false;
  std::vector<Tap> taps_;
  std::vector<std::int64_t> run_lengths_;
  std::vector<std::byte> fill_;
  std::int64_t width_ = 1, height_ = 1, anchor_y_ = 0;
  std::size_t item_ = 1, ring_bytes_ = 0, border_offset_ = 0, slot_rows_offset_ = 0;
};

}  // namespace

// Attributes: mode ("least" or "greatest"), width and height of the window, form (its mask row by row; by default all pixels),
// anchor_x, anchor_y, border, value (of the constant border; by default the value that is never the extreme).
TensorType infer_morphology(std::span<const Operand> operands, const Attributes& attributes) {
  image_shape("Morphology", operands[0].shape);
  signed_pixel_index("Morphology", operands[0].dtype);
  const std::string mode = attributes.get_string("mode", "least");
  if (mode != "least" && mode != "greatest")
    throw Error(ErrorKind::model, "Morphology does not support mode '" + mode + "'; known are least and greatest");
  const std::int64_t width = attributes.get_int("width", 1), height = attributes.get_int("height", 1);
  constexpr std::int64_t kMax = 1024;
  if (width < 1 || height < 1 || width > kMax || height > kMax)
    throw Error(ErrorKind::model, "Morphology: a window of " + std::to_string(width) + " by " + std::to_string(height) +
                                      " pixels is not in 1 to 1024");
  if (const auto form = attributes.get_ints("form"))
    if (static_cast<std::int64_t>(form->size()) != width * height ||
        std::all_of(form->begin(), form->end(), [](auto x) { return x == 0; }))
      throw Error(ErrorKind::model, "Morphology: form must have width * height numbers and at least one that is not 0");
  anchor_of("Morphology", attributes, "anchor_x", width);
  anchor_of("Morphology", attributes, "anchor_y", height);
  if (border_of("Morphology", attributes) == Border::transparent)
    throw Error(ErrorKind::unsupported, "Morphology does not support a transparent border");
  return {operands[0].dtype, operands[0].shape};
}
std::unique_ptr<HostStep> make_morphology(const StepRequest& request) { return std::make_unique<MorphologyStep>(request); }

}  // namespace walle

// Morphology (the least or the greatest of a window of any form) and MedianFilter.
#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "atomic/image/image.h"

namespace walle {

namespace {

std::size_t ordered_index(std::string_view op, DType dtype) {
  switch (dtype) {
    case DType::u8: return 0;
    case DType::u16: return 1;
    case DType::i16: return 2;
    case DType::f32: return 3;
    default:
      throw Error(ErrorKind::dtype,
                  std::string(op) + " takes uint8, uint16, int16 and float32 images, not " + std::string(dtype_name(dtype)));
  }
}

// A pixel of the constant border: the number in every channel, or what never wins.
std::vector<std::byte> border_pixel(DType dtype, std::int64_t channels, bool greatest, const Attributes& attributes) {
  std::vector<std::byte> pixel(static_cast<std::size_t>(channels) * item_size(dtype));
  const auto given = attributes.get_floats("value");
  const auto fill = [&]<class T>(T) {
    using Limit = std::numeric_limits<T>;
    const T never = greatest ? Limit::lowest() : Limit::max();
    for (std::int64_t c = 0; c < channels; ++c) {
      const double number =
          given && !given->empty() ? (*given)[std::min<std::size_t>(static_cast<std::size_t>(c), given->size() - 1)] : 0;
      const T value =
          given && !given->empty()
              ? static_cast<T>(std::clamp(number, static_cast<double>(Limit::lowest()), static_cast<double>(Limit::max())))
              : never;
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

// Framed rows of a window kept in scratch; a rectangle's are already the extremes along x. Of another form the pixels of a row
// that stand together are taken as one from a row of such extremes, where that is less to do.
class MorphologyStep final : public Step {
 public:
  explicit MorphologyStep(const StepRequest& request) : from_(image_shape("Morphology", request.inputs[0].shape)) {
    const Attributes& attributes = request.attributes;
    const DType dtype = request.result.dtype;
    const bool greatest = attributes.get_string("mode", "least") == "greatest";
    const std::size_t index = ordered_index("Morphology", dtype);
    kernel_ = greatest ? request.table.image->greatest[index] : request.table.image->least[index];
    width_ = attributes.get_int("width", 1);
    height_ = attributes.get_int("height", 1);
    if (const auto form = attributes.get_ints("form"))
      find_taps(*form);
    else
      rectangle_ = true;
    anchor_y_ = anchor_of("Morphology", attributes, "anchor_y", height_);
    frame_.border = border_of("Morphology", attributes);
    frame_.width = from_.width;
    frame_.left = anchor_of("Morphology", attributes, "anchor_x", width_);
    frame_.right = width_ - 1 - frame_.left;
    item_ = item_size(dtype);
    frame_.pixel = static_cast<std::size_t>(from_.channels) * item_;
    fill_ = border_pixel(dtype, from_.channels, greatest, attributes);
    ring_bytes_ = lines(frame_.bytes());
    // The ring, a row of the border, which rows are in it, addresses. A rectangle keeps two blocks of rows and a running row.
    const std::int64_t rows = rectangle_ ? 2 * height_ + 1 : height_ * static_cast<std::int64_t>(reaches_.size());
    border_at_ = static_cast<std::size_t>(rows) * ring_bytes_;
    held_at_ = border_at_ + ring_bytes_;
    scratch_bytes_ = held_at_ + static_cast<std::size_t>(height_) * sizeof(std::int64_t) + (taps_.size() + 2) * sizeof(void*);
  }

  void run(std::byte* const* inputs, std::byte* output, std::byte* scratch) const noexcept override {
    frame_.make_constant(fill_.data(), scratch + border_at_);
    rectangle_ ? run_rectangle(inputs[0], output, scratch) : run_form(inputs[0], output, scratch);
  }

 private:
  // Pixels of the form that stand together: extremes of so many, reaches_[reach], from column dx of the window's row dy on.
  struct Tap {
    std::int64_t dy, dx;
    std::size_t reach;
  };

  // What the extremes of `reach` neighbours cost, about, in rows read and written.
  static std::int64_t passes(std::int64_t reach) {
    if (reach <= kFew) return reach == 1 ? 0 : reach + 1;
    std::int64_t cost = 0;
    for (std::int64_t done = 1; done < reach; done *= 2) cost += 3;
    return cost;
  }

  void find_taps(std::span<const std::int64_t> form) {
    std::int64_t single = 0;
    for (std::int64_t dy = 0; dy < height_; ++dy)
      for (std::int64_t dx = 0, end; dx < width_; dx = end + 1) {
        const auto set = [&](std::int64_t x) { return x < width_ && form[static_cast<std::size_t>(dy * width_ + x)] != 0; };
        for (end = dx; set(end);) ++end;
        if (end == dx) continue;
        single += end - dx;
        auto known = std::find(reaches_.begin(), reaches_.end(), end - dx);
        if (known == reaches_.end()) known = reaches_.insert(known, end - dx);
        taps_.push_back({dy, dx, static_cast<std::size_t>(known - reaches_.begin())});
      }
    auto cost = static_cast<std::int64_t>(taps_.size());
    for (const std::int64_t reach : reaches_) cost += passes(reach);
    if (cost < single) return;
    taps_.clear();
    reaches_ = {1};
    for (std::int64_t dy = 0; dy < height_; ++dy)
      for (std::int64_t dx = 0; dx < width_; ++dx)
        if (form[static_cast<std::size_t>(dy * width_ + dx)] != 0) taps_.push_back({dy, dx, 0});
  }

  // Row `at` of the image or of its border, framed.
  void make_row(const std::byte* input, std::int64_t at, const std::byte* border, std::byte* to) const noexcept {
    const std::int64_t row = border_source(frame_.border, at, from_.height);
    if (row < 0)
      std::memcpy(to, border, frame_.bytes());
    else
      frame_.make(input + static_cast<std::size_t>(row * from_.row()) * item_, fill_.data(), to);
  }

  static constexpr std::int64_t kFew = 5;  // so many taps are read at once

  // Down the columns, of more than a few rows by van Herk's method: rows stand in blocks of the window's height, so that a window
  // is the end of one block and the beginning of the next; both are extremes that grow row by row.
  void run_rectangle(const std::byte* input, std::byte* output, std::byte* scratch) const noexcept {
    const std::byte* border = scratch + border_at_;
    const std::size_t row_bytes = static_cast<std::size_t>(from_.row()) * item_;
    std::byte* running = scratch + static_cast<std::size_t>(2 * height_) * ring_bytes_;
    const auto rows = static_cast<std::uint32_t>(2 * height_);
    const auto row_of = [&](std::int64_t at) { return scratch + static_cast<std::uint32_t>(at) % rows * ring_bytes_; };
    const auto extreme = [&](const std::byte* a, const std::byte* b, std::byte* to) {
      const void* taps[] = {a, b};
      kernel_(taps, 2, to, from_.row());
    };
    std::int64_t made = 0;  // rows count from the top of the first window
    const auto make = [&] {
      make_row(input, made - anchor_y_, border, row_of(made));
      along(row_of(made), width_);
      return row_of(made++);
    };
    for (std::int64_t y = 0; y < from_.height; ++y, output += row_bytes) {
      if (height_ <= kFew) {
        const void* taps[kFew];
        while (made < y + height_) make();
        for (std::int64_t t = 0; t < height_; ++t) taps[t] = row_of(y + t);
        kernel_(taps, static_cast<int>(height_), output, from_.row());
        continue;
      }
      const std::int64_t into = y % height_;
      if (into == 0) {
        while (made < y + height_) make();
        for (std::int64_t t = height_ - 2; t >= 0; --t) extreme(row_of(y + t), row_of(y + t + 1), row_of(y + t));
        std::memcpy(output, row_of(y), row_bytes);
        continue;
      }
      const std::byte* next = make();
      if (into == 1)
        std::memcpy(running, next, row_bytes);
      else
        extreme(running, next, running);
      extreme(row_of(y), running, output);
    }
  }

  void run_form(const std::byte* input, std::byte* output, std::byte* scratch) const noexcept {
    auto* held = reinterpret_cast<std::int64_t*>(scratch + held_at_);
    auto** taps = reinterpret_cast<const void**>(held + height_);
    std::fill(held, held + height_, std::numeric_limits<std::int64_t>::min());
    for (std::int64_t y = 0; y < from_.height; ++y, output += static_cast<std::size_t>(from_.row()) * item_) {
      const std::int64_t top = ring_slot(y - anchor_y_, height_);
      const auto slot_of = [&](std::int64_t dy) { return top + dy < height_ ? top + dy : top + dy - height_; };
      // The rows of a slot, one for each reach, follow each other.
      const auto ring = [&](std::int64_t dy, std::size_t reach) {
        return scratch + (static_cast<std::size_t>(slot_of(dy)) * reaches_.size() + reach) * ring_bytes_;
      };
      for (std::int64_t dy = 0; dy < height_; ++dy) {
        const std::int64_t at = y + dy - anchor_y_;
        if (held[slot_of(dy)] == at) continue;
        held[slot_of(dy)] = at;
        make_row(input, at, scratch + border_at_, ring(dy, 0));
        for (std::size_t reach = reaches_.size(); reach-- > 0;) {  // the first one last: the others are made from its row
          if (reach > 0) std::memcpy(ring(dy, reach), ring(dy, 0), frame_.bytes());
          along(ring(dy, reach), reaches_[reach]);
        }
      }
      int count = 0;
      for (const Tap& tap : taps_) taps[count++] = ring(tap.dy, tap.reach) + static_cast<std::size_t>(tap.dx) * frame_.pixel;
      kernel_(taps, count, output, from_.row());
    }
  }

  // The extremes of `wide` neighbours, in place, in passes over 2, 4, ... of them. A pass reads what lies ahead only.
  void along(std::byte* row, std::int64_t wide) const noexcept {
    const std::int64_t all = frame_.left + frame_.width + frame_.right;
    if (wide == 1) return;
    if (wide <= kFew && wide != 4) {  // four would go in two steps, the second of which reads what the first has written
      const void* taps[kFew];
      for (std::int64_t t = 0; t < wide; ++t) taps[t] = row + static_cast<std::size_t>(t) * frame_.pixel;
      return kernel_(taps, static_cast<int>(wide), row, (all - wide + 1) * from_.channels);
    }
    std::int64_t reach = 1;
    while (reach < wide) {
      const std::int64_t step = std::min(reach, wide - reach), left = all - (reach + step - 1);
      const void* taps[] = {row, row + static_cast<std::size_t>(step) * frame_.pixel};
      kernel_(taps, 2, row, left * from_.channels);
      reach += step;
    }
  }

  ImageShape from_;
  RowFrame frame_;
  ExtremeFn kernel_;
  bool rectangle_ = false;
  std::vector<Tap> taps_;
  std::vector<std::int64_t> reaches_;
  std::vector<std::byte> fill_;
  std::int64_t width_ = 1, height_ = 1, anchor_y_ = 0;
  std::size_t item_ = 1, ring_bytes_ = 0, border_at_ = 0, held_at_ = 0;
};

// The rows of a window in a ring, framed; their columns in order, then the middle of each window.
class SmallMedianStep final : public Step {
 public:
  explicit SmallMedianStep(const StepRequest& request)
      : from_(image_shape("MedianFilter", request.inputs[0].shape)), size_(request.attributes.get_int("size", 3)) {
    const std::size_t index = ordered_index("MedianFilter", request.result.dtype);
    const ImageTable& images = *request.table.image;
    sort_ = size_ == 3 ? images.sort3[index] : images.sort5[index];
    kernel_ = size_ == 3 ? images.median9[index] : images.median25[index];
    item_ = item_size(request.result.dtype);
    frame_ = {Border::replicate, from_.width, size_ / 2, size_ / 2, static_cast<std::size_t>(from_.channels) * item_};
    ring_bytes_ = lines(frame_.bytes());
    scratch_bytes_ = static_cast<std::size_t>(2 * size_) * ring_bytes_;
  }

  void run(std::byte* const* inputs, std::byte* output, std::byte* scratch) const noexcept override {
    const std::size_t row_bytes = static_cast<std::size_t>(from_.row()) * item_;
    std::int64_t held[5] = {-9, -9, -9, -9, -9};
    const void *rows[5], *taps[25];
    void* ranks[5];
    for (std::int64_t t = 0; t < size_; ++t) {
      std::byte* rank = scratch + static_cast<std::size_t>(size_ + t) * ring_bytes_;
      ranks[t] = rank;
      for (std::int64_t k = 0; k < size_; ++k) taps[t * size_ + k] = rank + static_cast<std::size_t>(k) * frame_.pixel;
    }
    for (std::int64_t y = 0; y < from_.height; ++y, output += row_bytes) {
      for (std::int64_t t = 0; t < size_; ++t) {
        const std::int64_t at = y + t - size_ / 2, slot = (at + size_) % size_;
        std::byte* row = scratch + static_cast<std::size_t>(slot) * ring_bytes_;
        rows[t] = row;
        if (held[slot] == at) continue;
        held[slot] = at;
        const std::int64_t from = border_source(Border::replicate, at, from_.height);
        frame_.make(inputs[0] + static_cast<std::size_t>(from) * row_bytes, nullptr, row);
      }
      sort_(rows, ranks, static_cast<std::int64_t>(frame_.bytes() / item_));
      kernel_(taps, output, from_.row());
    }
  }

 private:
  ImageShape from_;
  std::int64_t size_;
  SortRowsFn sort_;
  MedianFn kernel_;
  RowFrame frame_;
  std::size_t item_ = 1, ring_bytes_ = 0;
};

// Bytes and any window: histograms of the columns slide down, the window's histogram slides along and is read from the last
// median (Huang's and Perreault's methods together). Histograms have 16 coarse cells above 256 fine ones.
class HistogramMedianStep final : public Step {
 public:
  explicit HistogramMedianStep(const StepRequest& request)
      : from_(image_shape("MedianFilter", request.inputs[0].shape)), reach_(request.attributes.get_int("size", 3) / 2) {
    scratch_bytes_ = static_cast<std::size_t>(from_.width) * sizeof(Cells);
  }

  void run(std::byte* const* inputs, std::byte* output, std::byte* scratch) const noexcept override {
    for (std::int64_t c = 0; c < from_.channels; ++c)
      run_channel(reinterpret_cast<const std::uint8_t*>(inputs[0]) + c, reinterpret_cast<std::uint8_t*>(output) + c,
                  reinterpret_cast<Cells*>(scratch));
  }

 private:
  struct Cells {
    std::uint16_t coarse[16], fine[256];

    void count(std::uint8_t value, std::uint16_t by) noexcept {
      coarse[value >> 4] = static_cast<std::uint16_t>(coarse[value >> 4] + by);
      fine[value] = static_cast<std::uint16_t>(fine[value] + by);
    }
  };

  void run_channel(const std::uint8_t* in, std::uint8_t* out, Cells* columns) const noexcept {
    const std::int64_t width = from_.width, height = from_.height, pixel = from_.channels, row = from_.row();
    const auto clamp = [](std::int64_t at, std::int64_t size) { return std::clamp<std::int64_t>(at, 0, size - 1); };
    constexpr std::uint16_t minus = 0xffff;
    std::memset(columns, 0, static_cast<std::size_t>(width) * sizeof(Cells));
    for (std::int64_t t = -reach_ - 1; t < reach_; ++t)
      for (std::int64_t x = 0; x < width; ++x) columns[x].count(in[clamp(t, height) * row + x * pixel], 1);
    const std::uint32_t half = static_cast<std::uint32_t>((2 * reach_ + 1) * (2 * reach_ + 1) / 2);
    for (std::int64_t y = 0; y < height; ++y) {
      const std::uint8_t *leaves = in + clamp(y - reach_ - 1, height) * row, *enters = in + clamp(y + reach_, height) * row;
      for (std::int64_t x = 0; x < width; ++x) {
        columns[x].count(leaves[x * pixel], minus);
        columns[x].count(enters[x * pixel], 1);
      }
      std::uint32_t coarse[16] = {}, fine[16][16] = {};
      std::int64_t fresh[16];  // the first column that the fine cells of a coarse one do not cover yet, as a window's end
      std::fill(fresh, fresh + 16, -reach_ - 1);
      for (std::int64_t t = -reach_ - 1; t < reach_; ++t)
        for (int k = 0; k < 16; ++k) coarse[k] += columns[clamp(t, width)].coarse[k];
      for (std::int64_t x = 0; x < width; ++x) {
        const Cells &gone = columns[clamp(x - reach_ - 1, width)], &come = columns[clamp(x + reach_, width)];
        for (int k = 0; k < 16; ++k) coarse[k] += std::uint32_t{come.coarse[k]} - gone.coarse[k];
        std::uint32_t below = 0;
        int cell = 0;
        while (below + coarse[cell] <= half) below += coarse[cell++];
        std::uint32_t* part = fine[cell];
        if (x - fresh[cell] > reach_) {  // too far away to slide
          std::fill(part, part + 16, 0u);
          for (std::int64_t t = x - reach_; t <= x + reach_; ++t)
            for (int k = 0; k < 16; ++k) part[k] += columns[clamp(t, width)].fine[cell * 16 + k];
        } else {
          for (std::int64_t t = fresh[cell] + 1; t <= x; ++t) {
            const Cells &left = columns[clamp(t - reach_ - 1, width)], &right = columns[clamp(t + reach_, width)];
            for (int k = 0; k < 16; ++k) part[k] += std::uint32_t{right.fine[cell * 16 + k]} - left.fine[cell * 16 + k];
          }
        }
        fresh[cell] = x;
        int k = 0;
        while (below + part[k] <= half) below += part[k++];
        out[y * row + x * pixel] = static_cast<std::uint8_t>(cell * 16 + k);
      }
    }
  }

  ImageShape from_;
  std::int64_t reach_;
};

}  // namespace

// Attributes: mode ("least" or "greatest"), width and height of the window, form (its pixels row by row, 0 or not; left out:
// all), anchor_x, anchor_y, border, value (of the constant border; left out: what never wins).
TensorType infer_morphology(std::span<const Operand> operands, const Attributes& attributes) {
  image_shape("Morphology", operands[0].shape);
  ordered_index("Morphology", operands[0].dtype);
  const std::string mode = attributes.get_string("mode", "least");
  if (mode != "least" && mode != "greatest")
    throw Error(ErrorKind::model, "Morphology mode '" + mode + "'; known are least and greatest");
  const std::int64_t width = attributes.get_int("width", 1), height = attributes.get_int("height", 1);
  constexpr std::int64_t kMost = 1024;
  if (width < 1 || height < 1 || width > kMost || height > kMost)
    throw Error(ErrorKind::model, "Morphology with a window of " + std::to_string(width) + " by " + std::to_string(height));
  if (const auto form = attributes.get_ints("form"))
    if (static_cast<std::int64_t>(form->size()) != width * height ||
        std::all_of(form->begin(), form->end(), [](auto x) { return x == 0; }))
      throw Error(ErrorKind::model, "the form of Morphology needs width * height numbers, one of which is not 0");
  anchor_of("Morphology", attributes, "anchor_x", width);
  anchor_of("Morphology", attributes, "anchor_y", height);
  if (border_of("Morphology", attributes) == Border::transparent)
    throw Error(ErrorKind::unsupported, "Morphology with a transparent border");
  return {operands[0].dtype, operands[0].shape};
}
std::unique_ptr<Step> make_morphology(const StepRequest& request) { return std::make_unique<MorphologyStep>(request); }

// Attribute: size, odd; windows greater than 5 of uint8 only.
TensorType infer_median_filter(std::span<const Operand> operands, const Attributes& attributes) {
  image_shape("MedianFilter", operands[0].shape);
  ordered_index("MedianFilter", operands[0].dtype);
  const std::int64_t size = attributes.get_int("size", 3);
  if (size < 3 || size % 2 == 0 || size > 255)
    throw Error(ErrorKind::model, "MedianFilter of size " + std::to_string(size) + "; it is odd, 3 to 255");
  if (size > 5 && operands[0].dtype != DType::u8)
    throw Error(ErrorKind::dtype,
                "MedianFilter of a size greater than 5 takes uint8, not " + std::string(dtype_name(operands[0].dtype)));
  return {operands[0].dtype, operands[0].shape};
}
std::unique_ptr<Step> make_median_filter(const StepRequest& request) {
  if (request.attributes.get_int("size", 3) <= 5) return std::make_unique<SmallMedianStep>(request);
  return std::make_unique<HistogramMedianStep>(request);
}

}  // namespace walle

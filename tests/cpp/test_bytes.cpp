// The kernels of bytes of every instruction set, bit for bit as the plain ones.
#include "kernels/bytes.h"

#include <bit>
#include <cstring>
#include <vector>

#include "check.h"
#include "guarded.h"

using namespace walle;
using check::Guarded;

namespace {

std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }
void fill(std::mt19937_64& random, const Guarded& to, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) to.data()[i] = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
}

// One block of columns, so that blocks of another width mean the same.
void panels(const Bytes& bytes) {
  std::mt19937_64 random(12);
  for (int round = 0; round < 200; ++round) {
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
    Guarded a(in_count), w(size(segment.length * bytes.pack)), narrow(size(segment.length * 4)), out(out_count),
        wanted(out_count), bias(size(args.width));
    fill(random, a, in_count);
    fill(random, w, size(segment.length * bytes.pack));
    fill(random, out, out_count);
    fill(random, bias, size(args.width));
    std::memcpy(wanted.data(), out.data(), out_count * sizeof(float));
    for (std::int64_t k = 0; k < segment.length; ++k)
      std::memcpy(narrow.data() + k * 4, w.data() + k * bytes.pack, 4 * sizeof(float));
    args.a = a.data();
    if (check::whole(random, 0, 1) == 0) args.finish.bias = bias.data();
    args.w = w.data();
    args.out = out.data();
    bytes.panel(args);
    args.w = narrow.data();
    args.out = wanted.data();
    scalar::kBytes.panel(args);
    CHECK(std::memcmp(out.data(), wanted.data(), out_count * sizeof(float)) == 0);
  }
}

}  // namespace

int main() {
  for (const Backend& backend : backends())
    if (backend.available) panels(bytes(kernels(backend.name)));
  return check::failures != 0;
}

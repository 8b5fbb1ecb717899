// TfIdfVectorizer: counts of each n-gram of a pool in rows of integers. Every position of a row is compared with every n-gram at
// once.
#include <algorithm>

#include "geometry/composite/composite.h"
#include "geometry/composite/expressions.h"

namespace walle {

namespace {

using Ref = Emitter::Ref;

// A pool's n-grams of one length: (count, length), and the output positions of their counts.
struct Grams {
  std::int64_t length;
  Dims items, coordinates;

  std::int64_t count() const { return static_cast<std::int64_t>(coordinates.size()); }
};

struct Pool {
  std::vector<Grams> grams;  // n-grams of the counted lengths
  std::int64_t width = 0;    // width of the output

  static Pool of(const Attributes& attributes) {
    constexpr std::int64_t kMaxWidth = 1 << 24;
    const Dims pool = attributes.get_ints("pool_int64s").value_or(Dims{});
    const Dims begins = attributes.get_ints("ngram_counts").value_or(Dims{});
    const Dims coordinates = attributes.get_ints("ngram_indexes").value_or(Dims{});
    const std::int64_t least = attributes.get_int("min_gram_length", 0), most = attributes.get_int("max_gram_length", 0);
    const auto broken = [](const std::string& what) { return Error(ErrorKind::model, "TfIdfVectorizer: " + what); };
    if (attributes.has("pool_strings")) throw Error(ErrorKind::unsupported, "TfIdfVectorizer of text; known are whole numbers");
    if (least < 1 || most < least) throw broken("lengths from " + std::to_string(least) + " to " + std::to_string(most));
    Pool result;
    for (const std::int64_t one : coordinates) {
      if (one < 0 || one >= kMaxWidth) throw broken("an n-gram has coordinate " + std::to_string(one));
      result.width = std::max(result.width, one + 1);
    }
    std::size_t id = 0;  // number of the n-gram, over all lengths
    for (std::size_t i = 0; i < begins.size(); ++i) {
      const auto length = static_cast<std::int64_t>(i) + 1, size = static_cast<std::int64_t>(pool.size());
      const std::int64_t begin = begins[i], end = i + 1 < begins.size() ? begins[i + 1] : size;
      if (begin < 0 || end < begin || end > size || (end - begin) % length != 0)
        throw broken("ngram_counts " + to_string(begins) + " does not divide a pool of " + std::to_string(size));
      const auto count = static_cast<std::size_t>((end - begin) / length);
      if (coordinates.size() - id < count)
        throw broken("there are " + std::to_string(coordinates.size()) + " ngram_indexes, and more n-grams");
      const auto from = coordinates.begin() + static_cast<std::ptrdiff_t>(id);
      if (length >= least && length <= most && count > 0)
        result.grams.push_back(
            {length, Dims(pool.begin() + begin, pool.begin() + end), Dims(from, from + static_cast<std::ptrdiff_t>(count))});
      id += count;
    }
    return result;
  }
};

// Return (rows, count): the count of each n-gram in each row of x, (rows, columns), its items `distance` apart; nothing if no row
// is long enough.
Ref counted(Emitter& emitter, Ref x, std::int64_t rows, std::int64_t columns, const Grams& grams, std::int64_t distance) {
  const std::int64_t reach = (grams.length - 1) * distance, places = columns - reach;
  if (places < 1) return Emitter::kAbsent;
  Ref found = Emitter::kAbsent;
  for (std::int64_t k = 0; k < grams.length; ++k) {
    Dims items;
    for (std::int64_t i = 0; i < grams.count(); ++i) items.push_back(grams.items[static_cast<std::size_t>(i * grams.length + k)]);
    const Ref part =
        emitter.one("Slice", {x}, {{"starts", Dims{k * distance}}, {"ends", Dims{k * distance + places}}, {"axes", Dims{1}}});
    const Ref same = emitter.one("Equal", {reshape(emitter, part, {rows, places, 1}), whole(emitter, items, {grams.count()})});
    found = found == Emitter::kAbsent ? same : emitter.one("And", {found, same});
  }
  return emitter.one("ReduceSum", {emitter.one("Cast", {found}, {{"to", std::string("float32")}})},
                     {{"axes", Dims{1}}, {"keepdims", std::int64_t{0}}});
}

// Weights by coordinate. The text of the operator indexes them by n-gram, its reference implementation by coordinate: the two
// must agree.
Ref weights_of(Emitter& emitter, const Attributes& attributes, std::int64_t width) {
  const auto weights = attributes.get_floats("weights");
  if (!weights) return Emitter::kAbsent;
  const Dims coordinates = attributes.get_ints("ngram_indexes").value_or(Dims{});
  Tensor row = Tensor::empty(DType::f32, {width});
  std::fill(row.data<float>(), row.data<float>() + width, 0.0f);
  if (weights->size() != coordinates.size())
    throw Error(ErrorKind::model, "TfIdfVectorizer has " + std::to_string(weights->size()) + " weights for " +
                                      std::to_string(coordinates.size()) + " n-grams");
  for (std::size_t i = 0; i < coordinates.size(); ++i) {
    const auto at = static_cast<std::size_t>(coordinates[i]);
    if (at >= weights->size() || (*weights)[at] != (*weights)[i])
      throw Error(ErrorKind::unsupported,
                  "TfIdfVectorizer: 'weights' by n-gram and by coordinate differ here; ONNX's text and its reference disagree on "
                  "which is meant, so only weights that are the same by both are supported");
    row.data<float>()[at] = static_cast<float>((*weights)[i]);
  }
  return emitter.constant(std::move(row));
}

}  // namespace

// x: integers, (columns) or (rows, columns). Output: float32, (width) or (rows, width).
std::vector<Ref> decompose_tfidf_vectorizer(Emitter& emitter, std::span<const Ref> inputs, const Attributes& attributes, int) {
  const Operand given = emitter.operand(inputs[0]);
  const Dims shape = given.shape;
  const Pool pool = Pool::of(attributes);
  const std::string mode = attributes.get_string("mode", "");
  const std::int64_t skips = attributes.get_int("max_skip_count", 0);
  if (mode != "TF" && mode != "IDF" && mode != "TFIDF") throw Error(ErrorKind::model, "TfIdfVectorizer mode '" + mode + "'");
  if (skips < 0 || skips > 1 << 10) throw Error(ErrorKind::model, "max_skip_count is " + std::to_string(skips));
  const Ref weights = weights_of(emitter, attributes, pool.width);
  if (given.absent || (given.dtype != DType::i64 && given.dtype != DType::i32))
    throw Error(ErrorKind::dtype, "TfIdfVectorizer takes int32 or int64, not " + std::string(dtype_name(given.dtype)));
  if (shape.empty() || shape.size() > 2)
    throw Error(ErrorKind::shape, "TfIdfVectorizer of " + to_string(shape) + "; one or two dimensions are needed");
  const std::int64_t columns = shape.back(), rows = shape.size() == 2 ? shape[0] : 1;
  Ref x = reshape(emitter, inputs[0], {rows, columns});
  if (given.dtype != DType::i64) x = emitter.one("Cast", {x}, {{"to", std::string("int64")}});

  std::vector<Ref> parts;
  Dims coordinates;
  for (const Grams& grams : pool.grams) {
    Ref sum = Emitter::kAbsent;
    for (std::int64_t distance = 1; distance <= (grams.length == 1 ? 1 : skips + 1); ++distance) {
      const Ref more = counted(emitter, x, rows, columns, grams, distance);
      if (more == Emitter::kAbsent) break;
      sum = sum == Emitter::kAbsent ? more : emitter.one("Add", {sum, more});
    }
    if (sum == Emitter::kAbsent) continue;
    parts.push_back(sum);
    coordinates.insert(coordinates.end(), grams.coordinates.begin(), grams.coordinates.end());
  }
  Ref result = emitter.one("Expand", {emitter.number(0, DType::f32)}, {{"shape", Dims{rows, pool.width}}});
  if (!parts.empty()) {
    const auto count = static_cast<std::int64_t>(coordinates.size());
    const Ref places = emitter.one("Expand", {whole(emitter, coordinates, {1, count})}, {{"shape", Dims{rows, count}}});
    const Ref counts = emitter.one("Concat", parts, {{"axis", std::int64_t{1}}});
    result =
        emitter.one("ScatterElements", {result, places, counts}, {{"axis", std::int64_t{1}}, {"reduction", std::string("add")}});
  }
  if (mode == "IDF") result = emitter.one("Minimum", {result, emitter.number(1, DType::f32)});
  if (mode != "TF" && weights != Emitter::kAbsent) result = emitter.one("Mul", {result, weights});
  return {shape.size() == 1 ? reshape(emitter, result, {pool.width}) : result};
}

}  // namespace walle

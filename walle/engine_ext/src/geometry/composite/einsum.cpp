// Einsum: repeated labels become diagonals, labels that only one operand has are summed first, and operands are then combined two
// at a time as batched matrix products.
#include <algorithm>
#include <map>

#include "geometry/composite/composite.h"

namespace walle {

namespace {

using Ref = Emitter::Ref;

// Labels are letters; the dimensions of an ellipsis are negative numbers, counted from its right: -1 is the last.
using Labels = std::vector<int>;

struct Term {
  Ref value;
  Labels labels;  // one for each dimension, distinct
};

bool has(const Labels& labels, int label) { return std::find(labels.begin(), labels.end(), label) != labels.end(); }

[[noreturn]] void refuse(const std::string& equation, const std::string& why) {
  throw Error(ErrorKind::shape, "Einsum '" + equation + "': " + why);
}

// Parse the labels of one term; `rank` < 0 if the ellipsis covers `dots` dimensions, else it covers those without a letter.
Labels parse(const std::string& equation, std::string_view text, std::int64_t rank, std::size_t dots) {
  Labels labels;
  std::optional<std::size_t> ellipsis;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '.') {
      if (ellipsis || text.substr(i, 3) != "...") refuse(equation, "a misplaced '.'");
      ellipsis = labels.size();
      i += 2;
    } else if ((text[i] >= 'a' && text[i] <= 'z') || (text[i] >= 'A' && text[i] <= 'Z')) {
      labels.push_back(text[i]);
    } else {
      refuse(equation, std::string("'") + text[i] + "' is not a label");
    }
  }
  if (rank >= 0) {
    if (static_cast<std::int64_t>(labels.size()) > rank || (!ellipsis && static_cast<std::int64_t>(labels.size()) != rank))
      refuse(equation, "an operand has " + std::to_string(rank) + " dimensions, not " + std::to_string(labels.size()));
    dots = static_cast<std::size_t>(rank) - labels.size();
  }
  if (ellipsis) {
    Labels hidden;
    for (std::size_t i = dots; i > 0; --i) hidden.push_back(-static_cast<int>(i));
    labels.insert(labels.begin() + static_cast<std::ptrdiff_t>(*ellipsis), hidden.begin(), hidden.end());
  }
  return labels;
}

class Joiner {
 public:
  Joiner(Emitter& emitter, std::string equation, std::map<int, std::int64_t> sizes)
      : emitter_(emitter), equation_(std::move(equation)), sizes_(std::move(sizes)) {}

  Dims shape(Ref value) const { return emitter_.operand(value).shape; }

  // A repeated label becomes one dimension: the diagonal.
  Term diagonal(Term term) {
    const Dims from = shape(term.value), strides = contiguous_strides(from);
    Labels labels;
    Dims sizes, steps;
    for (std::size_t i = 0; i < term.labels.size(); ++i) {
      const auto at = static_cast<std::size_t>(std::find(labels.begin(), labels.end(), term.labels[i]) - labels.begin());
      if (at == labels.size()) {
        labels.push_back(term.labels[i]);
        sizes.push_back(from[i]);
        steps.push_back(strides[i]);
      } else {
        if (sizes[at] != from[i]) refuse(equation_, "a repeated label has two sizes in one operand");
        steps[at] += strides[i];
      }
    }
    if (labels.size() == term.labels.size()) return term;
    return {emitter_.one("AsStrided", {term.value}, {{"shape", sizes}, {"strides", steps}}), labels};
  }

  // Sum over the labels that are not in `kept`.
  Term reduce(Term term, const Labels& kept) {
    Dims axes;
    Labels labels;
    for (std::size_t i = 0; i < term.labels.size(); ++i) {
      if (has(kept, term.labels[i]))
        labels.push_back(term.labels[i]);
      else
        axes.push_back(static_cast<std::int64_t>(i));
    }
    if (axes.empty()) return term;
    return {emitter_.one("ReduceSum", {term.value}, {{"axes", axes}, {"keepdims", std::int64_t{0}}}), labels};
  }

  // Return the term with its dimensions in the order of `labels`, all of which it has.
  Ref ordered(const Term& term, const Labels& labels) {
    Dims perm;
    for (const int label : labels) perm.push_back(std::find(term.labels.begin(), term.labels.end(), label) - term.labels.begin());
    if (std::is_sorted(perm.begin(), perm.end())) return term.value;
    return emitter_.one("Transpose", {term.value}, {{"perm", perm}});
  }

  // Multiply a and b, keeping the labels of `kept`. Kept labels of both are batch labels; labels that are not kept are summed.
  Term join(Term a, Term b, const Labels& kept) {
    Labels batch, inner, left, right;
    for (const int label : a.labels) {
      if (!has(b.labels, label))
        left.push_back(label);
      else
        (has(kept, label) ? batch : inner).push_back(label);
    }
    for (const int label : b.labels)
      if (!has(a.labels, label)) right.push_back(label);
    const Labels none;
    const Ref first = matrix(a, batch, left, inner), second = matrix(b, batch, inner, right);
    Labels labels = batch;
    labels.insert(labels.end(), left.begin(), left.end());
    labels.insert(labels.end(), right.begin(), right.end());
    Dims sizes;
    for (const int label : labels) sizes.push_back(sizes_.at(label));
    return {reshaped(emitter_.one("MatMul", {first, second}), sizes), labels};
  }

 private:
  Ref reshaped(Ref value, const Dims& sizes) {
    if (shape(value) == sizes) return value;
    return emitter_.one("Reshape", {value}, {{"shape", sizes}, {"allowzero", std::int64_t{1}}});
  }

  // Reshape to [batch, rows, columns], each the product of its labels' sizes, or [rows, columns] without batch labels; dimensions
  // of 1 that broadcast are expanded first.
  Ref matrix(const Term& term, const Labels& batch, const Labels& rows, const Labels& columns) {
    Labels order = batch;
    order.insert(order.end(), rows.begin(), rows.end());
    order.insert(order.end(), columns.begin(), columns.end());
    Dims full;
    for (const int label : order) full.push_back(sizes_.at(label));
    Ref value = ordered(term, order);
    if (shape(value) != full) value = emitter_.one("Expand", {value}, {{"shape", full}});
    const auto product = [&](const Labels& labels) {
      Dims sizes;
      for (const int label : labels) sizes.push_back(sizes_.at(label));
      return element_count(sizes);
    };
    Dims sizes{product(rows), product(columns)};
    if (!batch.empty()) sizes.insert(sizes.begin(), product(batch));
    return reshaped(value, sizes);
  }

  Emitter& emitter_;
  std::string equation_;
  std::map<int, std::int64_t> sizes_;
};

}  // namespace

std::vector<Ref> decompose_einsum(Emitter& emitter, std::span<const Ref> inputs, const Attributes& attributes, int) {
  std::string equation = attributes.get_string("equation", "");
  std::erase(equation, ' ');
  const std::size_t arrow = equation.find("->");
  std::vector<std::string> texts(1);
  for (const char c : equation.substr(0, arrow)) {
    if (c == ',')
      texts.emplace_back();
    else
      texts.back() += c;
  }
  if (texts.size() != inputs.size())
    refuse(equation, "it has " + std::to_string(texts.size()) + " operands, not " + std::to_string(inputs.size()));
  std::vector<Term> terms;
  std::map<int, std::int64_t> sizes;
  std::map<int, int> seen;
  std::size_t dots = 0;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Dims shape = emitter.operand(inputs[i]).shape;
    terms.push_back({inputs[i], parse(equation, texts[i], static_cast<std::int64_t>(shape.size()), 0)});
    for (std::size_t axis = 0; axis < shape.size(); ++axis) {
      const int label = terms[i].labels[axis];
      ++seen[label];
      if (label < 0) dots = std::max(dots, static_cast<std::size_t>(-label));
      const auto [at, fresh] = sizes.emplace(label, shape[axis]);
      if (fresh || at->second == shape[axis]) continue;
      if (at->second != 1 && shape[axis] != 1)
        refuse(equation, "a label has sizes " + std::to_string(at->second) + " and " + std::to_string(shape[axis]));
      at->second = at->second == 1 ? shape[axis] : at->second;
    }
  }
  Labels output;
  if (arrow == std::string::npos) {  // the ellipsis, then every letter that occurs once, in alphabetical order
    for (std::size_t i = dots; i > 0; --i) output.push_back(-static_cast<int>(i));
    for (const auto& [label, count] : seen)
      if (label > 0 && count == 1) output.push_back(label);
  } else {
    output = parse(equation, equation.substr(arrow + 2), -1, dots);
  }
  for (std::size_t i = 0; i < output.size(); ++i)
    if (!sizes.contains(output[i]) || std::count(output.begin(), output.end(), output[i]) > 1)
      refuse(equation, "the result names a label twice, or one that no operand has");

  Joiner joiner(emitter, equation, sizes);
  for (Term& term : terms) term = joiner.diagonal(std::move(term));
  while (terms.size() > 1) {
    Labels others = output;  // labels needed after this product
    for (std::size_t i = 2; i < terms.size(); ++i) others.insert(others.end(), terms[i].labels.begin(), terms[i].labels.end());
    Labels first_kept = others, second_kept = others;
    first_kept.insert(first_kept.end(), terms[1].labels.begin(), terms[1].labels.end());
    second_kept.insert(second_kept.end(), terms[0].labels.begin(), terms[0].labels.end());
    const Term left = joiner.reduce(terms[0], first_kept), right = joiner.reduce(terms[1], second_kept);
    terms[1] = joiner.join(left, right, others);
    terms.erase(terms.begin());
  }
  Term last = joiner.reduce(terms[0], output);
  Ref result = joiner.ordered(last, output);
  Dims full;
  for (const int label : output) full.push_back(sizes.at(label));
  if (emitter.operand(result).shape != full) result = emitter.one("Expand", {result}, {{"shape", full}});
  return {result == inputs[0] ? emitter.one("Identity", {result}) : result};
}

}  // namespace walle

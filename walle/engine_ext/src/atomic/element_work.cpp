#include "atomic/element_work.h"

namespace walle {

namespace {

struct OperatorTime {
  std::string_view name;
  double time;  // unit of the table
};

// Time of an element beyond that of moving it, in lane operations: measured on values of 4096 to 196608 elements (Emerald Rapids,
// avx512; avx2 and scalar need as many to within a half).
constexpr OperatorTime kFunctions[] = {
    // Functions of one vector.
    {"Exp", 15},
    {"Expm1", 30},
    {"Log", 22},
    {"Log1p", 30},
    {"Sqrt", 15},
    {"Rsqrt", 15},
    {"Reciprocal", 12},
    {"Tanh", 37},
    {"Sigmoid", 23},
    {"Softplus", 45},
    {"Erf", 46},
    {"Sin", 37},
    {"Cos", 37},
    {"Tan", 50},
    {"Div", 8},
    {"Power", 200},
    // Activations in one pass.
    {"Elu", 18},
    {"Gelu", 58},
    {"HardSwish", 3},
    {"Mish", 32},
    {"Swish", 25},
    // Rows: a pass for the greatest or the mean, one for exponentials or squares, one for the result.
    {"Softmax", 31},
    {"LogSoftmax", 34},
    {"LayerNormalization", 15},
    {"RMSNormalization", 11},
    // Reductions of rows.
    {"ReduceMax", 12},
    {"ReduceMin", 12},
};

// Time of beginning a row and of joining its lanes, in bytes moved (64 rows of 64 elements, avx512).
constexpr OperatorTime kRows[] = {
    {"Softmax", 2500}, {"LogSoftmax", 3200}, {"LayerNormalization", 1300}, {"RMSNormalization", 1000}};

}  // namespace

double element_operations(std::string_view op) noexcept {
  for (const OperatorTime& one : kFunctions)
    if (one.name == op) return one.time;
  return 0;
}

double row_bytes(std::string_view op) noexcept {
  for (const OperatorTime& one : kRows)
    if (one.name == op) return one.time;
  return 0;
}

}  // namespace walle

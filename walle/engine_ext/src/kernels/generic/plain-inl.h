// The scalar loops for strides and arguments without a vector kernel, by element type; filled before any kernel runs.
template <UnaryOp op, int type = 0>
UnaryFn plain_unary = nullptr;
template <BinaryOp op, int type = 0>
BinaryFn plain_binary = nullptr;
template <ReduceOp op>
ReduceFn plain_reduce = nullptr;

// The scalar loops, for the strides that vectors do not serve; filled before any kernel runs.
template <UnaryOp op>
UnaryFn plain_unary = nullptr;
template <BinaryOp op>
BinaryFn plain_binary = nullptr;
template <ReduceOp op>
ReduceFn plain_reduce = nullptr;

#include "core/fault.h"

#include <utility>

namespace walle {

namespace {
thread_local FaultScope* current_scope = nullptr;
}  // namespace

FaultScope* FaultScope::current() noexcept { return current_scope; }

FaultScope* FaultScope::exchange(FaultScope* scope) noexcept { return std::exchange(current_scope, scope); }

}  // namespace walle

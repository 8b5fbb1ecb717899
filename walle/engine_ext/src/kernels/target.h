// The target region of an instruction set: WALLE_TARGET_BEGIN("avx2,fma") ... WALLE_TARGET_END around its functions.
//
// No file of the engine is compiled with an -m flag. Code for an instruction set is in such a region, in its own namespace, so
// that no inline function or template compiled with its instructions can replace the baseline's at link time. Standard headers
// and the kernel tables are included here, before any region begins.
#pragma once
#if defined(__x86_64__)
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC's own header causes it (bug 105593)
#pragma GCC diagnostic ignored "-Wuninitialized"        // GCC's own header causes it
#endif
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>

#include "kernels/bfloat16.h"
#include "kernels/bytes.h"
#include "kernels/channels.h"
#include "kernels/depthwise.h"
#include "kernels/image.h"
#include "kernels/table.h"

#define WALLE_PRAGMA(...) _Pragma(#__VA_ARGS__)
#if defined(__clang__)
#define WALLE_TARGET_BEGIN(names) WALLE_PRAGMA(clang attribute push(__attribute__((target(names))), apply_to = function))
#define WALLE_TARGET_END WALLE_PRAGMA(clang attribute pop)
#else
#define WALLE_TARGET_BEGIN(names) \
  WALLE_PRAGMA(GCC push_options)  \
  WALLE_PRAGMA(GCC target names)
#define WALLE_TARGET_END WALLE_PRAGMA(GCC pop_options)
#endif

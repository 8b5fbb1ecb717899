// Creation of a VM's interpreter.
#pragma once
#include <Python.h>

#include <functional>
#include <string>

namespace walle::vm {

// Sets the marshalled code of an empty module that every VM imports in place of `site`, whose walk over site-packages a VM does
// not need. Only the first call has an effect.
void set_empty_site(std::string code);

// Returns a new interpreter with its own GIL and allocator, without threads or fork, which loads only modules that support
// this; the calling thread holds its GIL. Interpreters are created one at a time, and `is_needed` is asked when the turn comes.
// Returns null and sets `error` where creation fails or is no longer needed.
PyThreadState* create_interpreter(const std::function<bool()>& is_needed, std::string& error);

// In the child of a fork: releases the lock, which the creating thread of the parent may have held.
void reset_creation_after_fork();

}  // namespace walle::vm

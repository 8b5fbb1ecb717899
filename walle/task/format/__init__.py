"""A task as its author writes it: task.toml, tree, large files, imports, compilers, bundle."""

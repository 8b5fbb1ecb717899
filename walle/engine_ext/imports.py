"""What a task may import besides its own modules: checked when a bundle is built, and held again by the VM."""

# A name allows what lies below it: `collections` allows `collections.abc`.
ALLOWED_IMPORTS = frozenset(
    {
        "abc", "array", "base64", "bisect", "collections", "contextlib", "copy", "dataclasses", "datetime", "decimal",
        "enum", "fractions", "functools", "hashlib", "heapq", "io", "itertools", "json", "math", "numbers", "operator",
        "random", "re", "statistics", "string", "struct", "textwrap", "time", "types", "typing", "unicodedata", "zlib",
        "__future__", "walle.np", "walle.cv", "walle.nn",
    }
)  # fmt: skip

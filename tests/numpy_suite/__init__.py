"""NumPy's own test files, run on walle.np (`make numpy-suite`)."""

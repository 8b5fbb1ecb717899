"""`walle demo livestream`: a stream's highlights, found by devices and their cloud on this machine."""

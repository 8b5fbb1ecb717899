"""`import walle.np as np`: see `walle.engine_ext.np`, whose names these are."""

from walle.engine_ext.np import *  # noqa: F403 -- the same names under the public address

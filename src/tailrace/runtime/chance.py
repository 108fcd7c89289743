"""Python's own generators of random numbers, which user code shares with everything in its process."""

from __future__ import annotations

import random

import numpy as np


def reseed(seed: int) -> None:
    """From here on the generators of the modules `random` and `numpy.random` give what follows from this seed (an int64).
    Other generators are whoever's that has made them."""
    random.seed(seed)
    np.random.seed((seed ^ seed >> 32) & 0xFFFFFFFF)

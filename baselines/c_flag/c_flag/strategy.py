"""c_flag: the strategy, Algorithms 1 and 2 of the paper, is cflag's method."""

from cflag.methods.cflag import CFlag

__all__ = ["CFlag"]

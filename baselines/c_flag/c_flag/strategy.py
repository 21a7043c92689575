"""c_flag: the strategy is cflag's method of the same name, Algorithms 1 and 2 of the paper."""

from cflag.methods.cflag import CFlag

__all__ = ["CFlag"]

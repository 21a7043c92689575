"""Pictures as arrays: where their channels are."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def channels_first(pictures: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return bytes (n, height, width), or with channels first or last, as (n, channels, height, width)."""
    if pictures.ndim == 3:
        return np.ascontiguousarray(pictures[:, None])
    last = pictures.ndim == 4 and pictures.shape[3] in (1, 3) and pictures.shape[1] not in (1, 3)
    return np.ascontiguousarray(pictures.transpose(0, 3, 1, 2) if last else pictures)

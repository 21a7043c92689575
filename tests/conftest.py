"""What all tests share: one thread a process, and no time limits on property tests."""

from __future__ import annotations

import hypothesis
import torch

torch.set_num_threads(1)  # tests run side by side; two threads in small operations only get in their way
hypothesis.settings.register_profile("cflag", deadline=None)
hypothesis.settings.load_profile("cflag")

"""One torch thread: models this small lose more to waiting for a second than it computes."""

import torch

torch.set_num_threads(1)

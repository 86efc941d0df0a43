"""How large the tensors are that a computation makes."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LargestTensor(TorchDispatchMode):
    """Watches how many entries the largest tensor of any operation has."""

    def __init__(self):
        super().__init__()
        self.entries = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **kwargs or {})
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                self.entries = max(self.entries, leaf.numel())
        return out

"""Three ways to train a wave: hand-batched kernels, `torch.func`, and a slow reference that both agree with."""

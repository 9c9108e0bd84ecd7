"""Kernels: layers that hold all clients of a wave and take their SGD steps in the backward pass.

The gradients of a layer's weights are never stored: each layer applies its step in place (`baddbmm_`), or, where
a client's weights differ from the broadcast ones by a product of thin matrices, keeps only the factors.
"""

from tacit.engine.learners.kernels.learner import KernelLearner, kernel_learner
from tacit.engine.learners.kernels.tracing import evaluation_module

__all__ = ["KernelLearner", "evaluation_module", "kernel_learner"]

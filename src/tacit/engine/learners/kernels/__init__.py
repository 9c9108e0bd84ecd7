"""The fast way through a wave: layers that hold all clients' weights at once and descend in their backward pass.

The gradients of a layer's weights are never written: each layer applies its step in place (`baddbmm_`), or, where
a client's weights differ from the broadcast ones by a product of thin matrices, keeps only the factors.
"""

from tacit.engine.learners.kernels.forward import forward_of
from tacit.engine.learners.kernels.learner import Kernels, kernels_for

__all__ = ["Kernels", "forward_of", "kernels_for"]

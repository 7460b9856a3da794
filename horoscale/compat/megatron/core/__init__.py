"""megatron.core: parallel_state and tensor_parallel."""

from horoscale.compat.megatron.core import parallel_state, tensor_parallel

__all__ = ["parallel_state", "tensor_parallel"]

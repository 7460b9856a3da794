"""Megatron-core's names for meshes and tensor parallelism, for programs written for them.

    from horoscale.compat.megatron.core import parallel_state, tensor_parallel

Returned groups are Axis objects. Arguments may also be a ProcessSet, or a torch.distributed process
group with the backend "horoscale".
"""

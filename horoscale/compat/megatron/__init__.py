"""Megatron-core's names for meshes and tensor parallelism, for programs that were written for them.

    from horoscale.compat.megatron.core import parallel_state, tensor_parallel

A group is an Axis; where one is given it may be a ProcessSet, or a group of torch.distributed's
backend "horoscale".
"""

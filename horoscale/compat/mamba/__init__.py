"""The names of mamba_ssm's distributed layers, for programs written for them.

    from horoscale.compat.mamba.distributed.tensor_parallel import ColumnParallelLinear

A process group is an Axis, a ProcessSet, or a torch.distributed process group backend "horoscale".
"""

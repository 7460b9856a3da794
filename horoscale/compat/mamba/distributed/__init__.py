"""mamba_ssm.distributed: layers and functions of tensor and sequence parallelism."""

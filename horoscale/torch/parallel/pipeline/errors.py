"""PipelineError: what stops a pipeline on all of its ranks."""


class PipelineError(RuntimeError):
    """A step of a pipeline failed on one rank; all ranks of the pipeline raise it, with its cause.

    The pipeline can't be used any longer: make another one.
    """

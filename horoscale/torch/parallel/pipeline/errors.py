"""PipelineError: a pipeline failed on all of its ranks."""


class PipelineError(RuntimeError):
    """A step of a pipeline failed on one rank. All ranks of the pipeline raise it, with its cause.

    The pipeline can't be used any longer: create another one.
    """

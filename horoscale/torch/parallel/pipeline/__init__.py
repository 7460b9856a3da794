"""Pipelines: a model in stages on several ranks, and microbatches that go through them."""

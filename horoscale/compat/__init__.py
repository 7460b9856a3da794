"""Horovod's names for horoscale: what `horoscalerun --compat` puts first on the ranks' paths.

path/horovod    a package that makes `import horovod.torch` give horoscale.torch (on PYTHONPATH)
bin/horovodrun  horoscalerun under its old name (on PATH)
aliases         the rule for names: which module of ours serves which of Horovod's
"""

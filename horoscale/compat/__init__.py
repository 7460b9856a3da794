"""Horovod's names for horoscale, which `horoscalerun --compat` prepends to the ranks' paths.

path/horovod    a package that makes `import horovod.torch` import horoscale.torch (on PYTHONPATH)
bin/horovodrun  horoscalerun under its old name (on PATH)
aliases         maps Horovod's modules to ours
"""

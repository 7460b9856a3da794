#!/usr/bin/env bash
# The backend of torch.distributed with older versions of PyTorch, each in its own environment.
#
#   make torch-check                   the documented versions, listed below
#   VERSIONS="2.6" make torch-check    others
#
# Environments and wheel are created in build/torch-versions; PyTorch installs 5 GB of CUDA libraries
# for each version. An existing environment is reused, and removed when its tests have passed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."

PYTHON=${PYTHON-python3}
VERSIONS=${VERSIONS-"2.4 2.8"}
WORK=$PWD/build/torch-versions
export OMP_NUM_THREADS=1

main() {
  rm -rf "$WORK/dist"
  mkdir -p "$WORK"
  "$PYTHON" -m venv "$WORK/build"
  "$WORK/build/bin/python" -m pip wheel -q --no-deps -w "$WORK/dist" .
  for version in $VERSIONS; do
    with_torch "$version"
    rm -rf "${WORK:?}/$version"
  done
  echo "== the backend works with PyTorch $VERSIONS"
}

with_torch() {
  local version=$1 bin=$WORK/$1/bin numpy=numpy
  echo "== PyTorch $version"
  [[ $version == 2.[0-5] ]] && numpy='numpy<2'
  "$PYTHON" -m venv "$WORK/$version"
  "$bin/python" -m pip install -q --no-compile "torch==$version.*" "$numpy" pytest pytest-timeout
  "$bin/python" -m pip install -q --force-reinstall --no-deps "$WORK"/dist/horoscale-*.whl
  "$bin/python" -m pip install -q "$WORK"/dist/horoscale-*.whl
  (
    cd tests # the wheel is tested, not the sources
    for size in 2 3; do
      # Ignore the warnings of old versions.
      "$bin/horoscalerun" -np "$size" "$bin/python" -m pytest -q --timeout=100 -W default \
        python/parallel/test_torch_distributed.py python/parallel/test_torch_distributed_functions.py \
        python/parallel/test_torch_distributed_messages.py
    done
    PATH=$bin:$PATH "$bin/python" -m pytest -q -W default python/integration/test_torch_distributed.py
  )
}

main

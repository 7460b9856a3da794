#!/usr/bin/env bash
# One wheel for all: builds it without TensorFlow, and tests it there and with each TensorFlow.
#
#   make wheel-check                      the documented versions, listed below
#   VERSIONS="2.21:3.15" make wheel-check   others, as TensorFlow:Keras
#
# Environments and wheel are created in build/wheels, which needs a gigabyte for each version.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."

PYTHON=${PYTHON-python3}
VERSIONS=${VERSIONS-"2.21:3.15 2.18:3.6"}
WORK=$PWD/build/wheels
export OMP_NUM_THREADS=1 TF_CPP_MIN_LOG_LEVEL=2 XDG_CACHE_HOME=$WORK/cache
# A selection: each operation, the types with their own kernels, all training tests.
SELECTION="float32 or bfloat16 or outstanding or gradient or train or optimizer"

main() {
  rm -rf "$WORK"
  mkdir -p "$WORK"
  without_tensorflow
  for versions in $VERSIONS; do
    with_tensorflow "${versions%:*}" "${versions#*:}"
  done
  echo "== the wheel works everywhere"
}

# Creates an environment with the wheel: name, further packages.
environment() {
  local name=$1
  shift
  "$PYTHON" -m venv "$WORK/$name"
  "$WORK/$name/bin/python" -m pip install -q "$WORK"/dist/horoscale-*.whl "$@"
}

without_tensorflow() {
  echo "== the wheel, and an environment without TensorFlow"
  "$PYTHON" -m venv "$WORK/build"
  "$WORK/build/bin/python" -m pip wheel -q --no-deps -w "$WORK/dist" .
  environment none
  (
    cd "$WORK"
    "$WORK/none/bin/horoscalerun" -np 2 "$WORK/none/bin/python" -c \
      'import horoscale.numpy as hvd; hvd.init(); assert hvd.allreduce([2.0]) == [2.0]'
    if message=$("$WORK/none/bin/python" -c 'import horoscale.tensorflow' 2>&1); then
      echo "horoscale.tensorflow was imported without TensorFlow" >&2
      exit 1
    fi
    grep 'pip install tensorflow' <<<"$message"
  )
}

with_tensorflow() {
  local tensorflow=$1 keras=$2 bin=$WORK/$1/bin
  echo "== TensorFlow $tensorflow, Keras $keras"
  environment "$tensorflow" "tensorflow-cpu==$tensorflow.*" "keras==$keras.*" \
    pytest pytest-timeout ml_dtypes scikit-learn
  (
    cd tests # the wheel is tested, not the sources
    for kernel in auto compiled; do
      HOROSCALE_TENSORFLOW_KERNEL=$kernel "$bin/horoscalerun" -np 2 \
        "$bin/python" -m pytest -q --timeout=100 -W default -k "$SELECTION" \
        python/parallel/test_tensorflow_*.py
    done
    "$bin/python" -m pytest -q python/wheels
  )
  rm -rf "${WORK:?}/$tensorflow"
}

main

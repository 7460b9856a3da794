#!/bin/sh
# Checks the models in this folder with spin: each must hold, and spin must find an error in each of
# its deliberately broken variants (the -DBROKEN_… in its first comment).
set -eu
models=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

# Explores all states of a model; the status says whether it holds.
holds() {
  model=$1
  shift
  spin "$@" -a "$models/$model" >spin.log || { cat spin.log; exit 2; }
  cc -O2 -w -DSAFETY -o pan pan.c
  ./pan -m1000000 >pan.log 2>&1 || true
  grep -q 'State-vector' pan.log || { cat pan.log; exit 2; }
  ! grep -q 'max search depth too small\|out of memory' pan.log || { cat pan.log; exit 2; }
  grep -q 'errors: 0$' pan.log
}

failed=0
for path in "$models"/*.pml; do
  model=$(basename "$path")
  if holds "$model"; then
    echo "$model: holds ($(sed -n 's/^ *\([0-9]*\) states, stored.*/\1/p' pan.log) states)"
  else
    echo "$model: FAILS"
    cat pan.log
    failed=1
  fi
  for variant in $(grep -o -e '-DBROKEN_[A-Z_]*' "$path" | sort -u); do
    if holds "$model" "$variant"; then
      echo "$model $variant: FAILS, it was not caught"
      failed=1
    else
      echo "$model $variant: caught"
    fi
  done
done
exit $failed

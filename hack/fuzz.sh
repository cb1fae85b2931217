#!/usr/bin/env bash
# Runs every fuzz target of the module for the given time.
set -euo pipefail
time=${1:?how long each, for example 30s}
grep -rl --include='*_test.go' '^func Fuzz' . | xargs -n1 dirname | sort -u | while read -r dir; do
  grep -rhoE --include='*_test.go' '^func Fuzz[A-Za-z0-9_]*' "$dir" | sed 's/^func //' | while read -r target; do
    echo "== $dir $target"
    go test -run '^$' -fuzz "^$target\$" -fuzztime "$time" "$dir"
  done
done

#!/usr/bin/env bash
# Runs go test and then names its ten slowest packages and tests: hack/gotest.sh FOLDER ARGUMENT...
# What is printed meanwhile are go test's own closing lines, and all that failing tests say.
set -euo pipefail
folder=$1
shift
gotestsum=$(cd "$(dirname "$0")/.." && pwd)/bin/gotestsum
events=$(mktemp)
trap 'rm -f "$events"' EXIT
args=$*
echo "go test ${args:0:200} ($folder)" # lists of tests are long
code=0
(cd "$folder" && "$gotestsum" --format standard-quiet --jsonfile "$events" -- "$@") || code=$?
echo "slowest packages:"
{ grep -v '"Test":' "$events" || true; } | sed -nE 's/.*"Action":"(pass|fail)","Package":"([^"]*)","Elapsed":([0-9.]+).*/  \3s \2/p' | sort -rn | sed -n 1,10p # reads to the end: who writes into a pipe that is closed fails
echo "slowest tests:"
"$gotestsum" tool slowest --threshold 1s --num 10 --jsonfile "$events"
exit "$code"

#!/usr/bin/env bash
# Runs the tests that need an API server: hack/apitests.sh LONGEST PACKAGE... -- ARGUMENT...
# The tests of a package run one after the other, and those of the LONGEST take as long as all others together: they run in two halves, beside
# the others. A test is in the one half or the other by its place in the list, so that a new one needs no entry anywhere.
set -euo pipefail
here=$(dirname "$0")
longest=$1
shift
others=()
while [ "$1" != -- ]; do
	[ "$1" = "$longest" ] || others+=("$1")
	shift
done
shift
half=$(go test "$@" -list . "$longest" | grep '^Test' | awk 'NR % 2' | paste -sd '|')
[ -n "$half" ] || { echo "error: $longest has no tests" >&2; exit 1; }
running=()
trap 'kill "${running[@]}" 2>/dev/null || true' EXIT
"$here/gotest.sh" . "$@" -run "^($half)\$" "$longest" & running+=($!)
"$here/gotest.sh" . "$@" -skip "^($half)\$" "$longest" & running+=($!)
"$here/gotest.sh" . "$@" -p 3 "${others[@]}" & running+=($!) # packages that wait leave room for another
code=0
for each in "${running[@]}"; do wait "$each" || code=$?; done
running=()
exit "$code"

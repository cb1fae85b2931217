#!/usr/bin/env bash
# Makes targets beside another, with what that one leaves of the processors: hack/beside.sh "TARGET..." OTHER. What they print comes last.
set -uo pipefail
log=$(mktemp)
# shellcheck disable=SC2086 # they are several
chrt --idle 0 "${MAKE:-make}" --no-print-directory $1 >"$log" 2>&1 &
beside=$!
trap 'kill "$beside" 2>/dev/null; rm -f "$log"' EXIT
"${MAKE:-make}" --no-print-directory "$2"
code=$?
wait "$beside" || code=$?
cat "$log"
exit "$code"

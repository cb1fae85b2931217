#!/usr/bin/env bash
# Runs the tests of the product that need an API server, or programs of Debian.
#   hack/apitests.sh              those that are compiled without the tag long, and no others: make check has run them
#   hack/apitests.sh long         all of them, with all other tests of their packages
# The tests of a package run one after the other. With the tag long, those of two packages take as long as many others together, and run in
# two halves beside the others. A test is in the one half or the other by its place in the list, so that a new one needs no entry anywhere.
set -euo pipefail
here=$(dirname "$0")
cd "$here/.."

# in_packages are the folders of files, as go names packages, those first that take longest.
in_packages() {
	sed 's,/[^/]*$,,; s,^,./,' | awk '{ first = /internal\/(cli|migrations)/ } !seen[$0]++ { if (first) print; else rest = rest $0 "\n" } END { printf "%s", rest }'
}

if [ "${1:-}" != long ]; then
	files=$(grep -rlE '^//go:build (apiserver|programs|apiserver && programs)$' --include='*_test.go' internal hack)
	names=$(grep -hoE '^func Test[A-Za-z0-9_]+\(t ' $files | sed 's/^func //; s/(t $//' | sort -u | paste -sd '|')
	exec hack/gotest.sh . -vet=off -tags apiserver,programs -timeout 20m -p 4 -run "^($names)\$" $(in_packages <<< "$files")
fi

arguments=(-short -vet=off -tags "apiserver,programs,long" -timeout 60m)
halved=(./internal/migrations/servicecidr ./internal/cli)
others=()
for each in $(grep -rlE '^//go:build (apiserver|programs)' --include='*_test.go' internal hack | in_packages); do
	[[ " ${halved[*]} " = *" $each "* ]] || others+=("$each")
done
running=()
trap 'kill "${running[@]}" 2>/dev/null || true' EXIT
for each in "${halved[@]}"; do
	half=$(go test "${arguments[@]}" -list . "$each" | { grep '^Test' || true; } | awk 'NR % 2' | paste -sd '|')
	[ -n "$half" ] || { echo "error: $each has no tests" >&2; exit 1; }
	hack/gotest.sh . "${arguments[@]}" -run "^($half)\$" "$each" & running+=($!)
	hack/gotest.sh . "${arguments[@]}" -skip "^($half)\$" "$each" & running+=($!)
done
hack/gotest.sh . "${arguments[@]}" -p 3 "${others[@]}" & running+=($!) # packages that wait leave room for another
code=0
for each in "${running[@]}"; do wait "$each" || code=$?; done
running=()
exit "$code"

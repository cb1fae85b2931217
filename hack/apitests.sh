#!/usr/bin/env bash
# Runs the tests that need an API server: hack/apitests.sh [-without LIST] LONGEST[,LONGEST...] PACKAGE... -- ARGUMENT...
# The tests of a package run one after the other, and those of the LONGEST take as long as many others together: they run in two halves, beside
# the others. A test is in the one half or the other by its place in the list, so that a new one needs no entry anywhere.
# LIST is a file of tests that are left out.
set -euo pipefail
here=$(dirname "$0")

# pattern prints the expression for go test's -skip that fits the tests of a list, and fails if one of them is not there.
pattern() {
	local name all
	all=$(grep -rhoE '^func Test[A-Za-z0-9_]+' --include='*_test.go' "$here/../internal" | cut -d' ' -f2)
	while read -r name; do
		case $name in
		*/*) compgen -G "$here/../internal/cli/testdata/*/${name#*/}.txtar" > /dev/null ;;
		*) grep -qx "$name" <<< "$all" ;;
		esac || { echo "error: $1 names $name, which is no test" >&2; return 1; }
		printf '^%s$|' "${name/\//\$/^}"
	done < <(grep -v '^#' "$1")
}

without=
if [ "$1" = -without ]; then
	without=$(pattern "$2")
	without=${without%|}
	echo "without the $(grep -vc '^#' "$2") tests of $2, which make test-api runs as well"
	shift 2
fi
IFS=, read -ra longest <<< "$1"
shift
others=()
while [ "$1" != -- ]; do
	[[ " ${longest[*]} " = *" $1 "* ]] || others+=("$1")
	shift
done
shift
running=()
trap 'kill "${running[@]}" 2>/dev/null || true' EXIT
for each in "${longest[@]}"; do
	half=$(go test "$@" -list . "$each" | { grep '^Test' || true; } | { grep -vE "${without:-^$}" || true; } | awk 'NR % 2' | paste -sd '|')
	[ -n "$half" ] || { echo "error: $each has no tests" >&2; exit 1; }
	"$here/gotest.sh" . "$@" -run "^($half)\$" ${without:+-skip "$without"} "$each" & running+=($!)
	"$here/gotest.sh" . "$@" -skip "^($half)\$${without:+|$without}" "$each" & running+=($!)
done
"$here/gotest.sh" . "$@" -p 3 ${without:+-skip "$without"} "${others[@]}" & running+=($!) # packages that wait leave room for another
code=0
for each in "${running[@]}"; do wait "$each" || code=$?; done
running=()
exit "$code"

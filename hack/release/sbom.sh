#!/usr/bin/env bash
# Writes the bill of materials of a binary (CycloneDX): hack/release/sbom.sh BINARY FILE. goreleaser runs it in dist.
set -euo pipefail
binary=$(realpath "$1")
file=$(realpath -m "$2")
cd "$(dirname "$0")/../.."
exec go tool -modfile="$PWD/hack/tools/go.mod" cyclonedx-gomod bin -json -output "$file" "$binary"

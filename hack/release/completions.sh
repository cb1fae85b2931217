#!/usr/bin/env bash
# Writes what shells read to complete replumb: hack/release/completions.sh FOLDER
set -euo pipefail
dir=$1
mkdir -p "$dir"
go build -trimpath -o "$dir/.replumb" ./cmd/replumb
"$dir/.replumb" completion bash >"$dir/replumb.bash"
"$dir/.replumb" completion zsh >"$dir/_replumb"
"$dir/.replumb" completion fish >"$dir/replumb.fish"
"$dir/.replumb" completion powershell >"$dir/replumb.ps1"
rm "$dir/.replumb"

#!/usr/bin/env bash
# Downloads the Go modules that components of the lab are built from, unless those were built once: hack/modules.sh COMPONENT...
# It compiles nothing, so that it goes well beside what does.
set -euo pipefail

built=${XDG_CACHE_HOME:-$HOME/.cache}/replumb/components
cd "$(dirname "$0")/../lab/components"
export GOWORK=off CGO_ENABLED=0
for component in "$@"; do
  [ -z "$(compgen -G "$built/$component-[0-9]*")" ] || continue
  mapfile -t packages < <(go -C "$component" list tool 2>/dev/null) # a component without a main of its own names its packages so
  go -C "$component" list -deps "${packages[@]:-.}" >/dev/null
done

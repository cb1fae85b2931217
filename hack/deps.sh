#!/usr/bin/env bash
# Installs the Debian packages that the lab and the tests need and this machine lacks, and says so. Does nothing when
# there are none. Needs root only if there is something to install.
set -euo pipefail

declare -A package=(
  [runc]=runc [iptables]=iptables [nft]=nftables [conntrack]=conntrack [ipset]=ipset [ip]=iproute2
  [nsenter]=util-linux
  [jq]=jq # for the programs beside the examples
  [gcc]=gcc # for go test -race
)
missing=()
for command in "${!package[@]}"; do
  PATH="$PATH:/usr/sbin:/sbin" command -v "$command" >/dev/null || missing+=("${package[$command]}")
done
# gcc alone compiles nothing without the C library's headers.
[ -e /usr/include/stdlib.h ] || missing+=(libc6-dev)
[ ${#missing[@]} -gt 0 ] || exit 0

if [ "$(id -u)" != 0 ]; then
  echo "error: not installed: ${missing[*]}" >&2
  echo "hint: sudo apt-get install -y ${missing[*]}" >&2
  exit 1
fi
echo "installing Debian packages: ${missing[*]}"
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null

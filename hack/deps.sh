#!/usr/bin/env bash
# Installs the Debian packages that the lab and the tests need and this machine lacks, and says so. Does nothing when
# there are none. Needs root only if there is something to install. hack/deps.sh PROGRAM... also installs what single targets need, and
# hack/deps.sh --lab nothing but what a lab without an edge runs.
set -euo pipefail

# What a run that was killed has left keeps the host's services from starting. Only what has our mark goes, and not of a run that goes on.
policy=${POLICY_RC_D:-/usr/sbin/policy-rc.d}
marker='made by hack/deps.sh of replumb, process'
if [ -w "$policy" ]; then
  maker=$(sed -n "s|^# $marker ||p" "$policy")
  if [ -n "$maker" ] && ! kill -0 "$maker" 2>/dev/null; then
    rm -f "$policy"
  fi
fi

declare -A package=(
  [runc]=runc [iptables]=iptables [nft]=nftables [conntrack]=conntrack [ipset]=ipset [ip]=iproute2
  [nsenter]=util-linux
)
declare -A tests=(
  [haproxy]=haproxy [named]=bind9 # for labs with an edge, and tests of DNS
  [nsupdate]=bind9-dnsutils       # for the test of updates
  [jq]=jq # for the programs beside the examples
  [chromium]=chromium # for the tests of reports
  [curl]=curl         # for the test of metrics
  [gcc]=gcc # for go test -race
)
declare -A single=(
  [promtool]=prometheus # for the tests of alerts
  [clang-19]=clang-19 # for labs with Cilium, whose agents compile
  [busybox]=busybox-static [nc.openbsd]=netcat-openbsd [wget]=wget # for the images of Kubernetes' own tests
)
if [ "${1:-}" = --lab ]; then
  shift
  tests=()
fi
for command in "${!tests[@]}"; do
  package[$command]=${tests[$command]}
done
for command in "$@"; do
  package[$command]=${single[$command]}
done
missing=()
for command in "${!package[@]}"; do
  PATH="$PATH:/usr/sbin:/sbin" command -v "$command" >/dev/null || missing+=("${package[$command]}")
done
# Without names of protocols nft lists numbers, which kube-proxy in pods of a lab does not take for its own.
[ -e /etc/protocols ] || missing+=(netbase)
if [ ${#tests[@]} -gt 0 ]; then
  # gcc alone compiles nothing without the C library's headers.
  [ -e /usr/include/stdlib.h ] || missing+=(libc6-dev)
  # Without any font, chromium draws no text.
  [ -e /usr/share/fonts/truetype ] || missing+=(fonts-dejavu-core)
fi
[ ${#missing[@]} -gt 0 ] || exit 0

if [ "$(id -u)" != 0 ]; then
  echo "error: not installed: ${missing[*]}" >&2
  echo "hint: sudo apt-get install -y ${missing[*]}" >&2
  exit 1
fi
# haproxy and named come with services, which the host is to have neither now nor after its next start: only labs run them.
if [ ! -e "$policy" ]; then
  trap 'rm -f "$policy"' EXIT
  trap 'exit 129' HUP
  trap 'exit 130' INT
  trap 'exit 143' TERM
  printf '#!/bin/sh\n# %s %s\nexit 101\n' "$marker" $$ >"$policy"
  chmod 755 "$policy"
fi
echo "installing Debian packages: ${missing[*]}"
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
declare -A service=([haproxy]=haproxy [bind9]=named [prometheus]=prometheus)
if command -v systemctl >/dev/null; then
  for name in "${missing[@]}"; do
    [ -z "${service[$name]:-}" ] || systemctl --quiet disable "${service[$name]}" || true # without systemd there is none
  done
fi

#!/bin/sh
# A hook before each batch: stops the run while the file STOP_FILE exists.
if [ -e "${STOP_FILE:-/tmp/replumb-stop}" ]; then
  echo "${STOP_FILE:-/tmp/replumb-stop} exists" >&2
  exit 1
fi

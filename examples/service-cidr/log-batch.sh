#!/bin/sh
# A hook after each batch: a line with the run, the tier, the batch and its Services. A run that is taken up again may call
# it again, so the same line may come twice. Needs jq.
set -e
jq -r '"\(.run) \(.tier) \(.batch): \(.services | join(" "))"' >> "${MOVED_LOG:-/tmp/replumb-moved.log}"

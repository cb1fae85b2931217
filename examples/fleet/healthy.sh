#!/bin/sh
# Fails while a cluster of the wave has lost requests, or could not be looked at. Needs jq. Ask your own monitoring here.
#
# On stdin: {"wave": "eu", "clusters": [{"cluster": "eu-1", "phase": "Moved", "requests": 120000, "failed": 0}]}
exec jq --exit-status 'all(.clusters[]; .failed == 0 and .error == null)' >/dev/null

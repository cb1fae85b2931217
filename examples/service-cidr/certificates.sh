#!/bin/sh
# The action of the gate for certificates: has a playbook of yours issue them, with the new and the old address.
exec ansible-playbook -i "$INVENTORY" api-server-certificates.yml \
  -e "new_address=$REPLUMB_WANT" -e "old_address=$REPLUMB_KEEP"

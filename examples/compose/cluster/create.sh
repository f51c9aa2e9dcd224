#!/bin/sh
# Makes one cluster of the nodes in $NODES (HOST:PORT, three primaries and a replica for each), unless they are one.
set -eu

first=${NODES%% *}
ask() { valkey-cli -h "${first%:*}" -p "${first#*:}" "$@"; }

if ! ask cluster info | grep -q cluster_state:ok; then
  # CLUSTER MEET takes addresses and no names.
  addresses=
  for node in $NODES; do
    addresses="$addresses $(getent hosts "${node%:*}" | awk '{ print $1; exit }'):${node#*:}"
  done
  # shellcheck disable=SC2086
  valkey-cli --cluster create $addresses --cluster-replicas 1 --cluster-yes
fi
# shellcheck disable=SC2086
set -- $NODES
until ask cluster info | grep -q cluster_state:ok && [ "$(ask cluster nodes | grep -c slave)" = $(($# / 2)) ]; do
  sleep 0.5
done

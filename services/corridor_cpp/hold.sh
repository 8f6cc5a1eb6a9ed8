#!/bin/sh
# hold COMMAND…: runs it. Refused for good (status 78), it stays up, unhealthy, and repeats the cause, which the command left
# in SEEDBED_CAUSE_FILE: under restart: on-failure an exit would be a loop.
cause=${SEEDBED_CAUSE_FILE:-/tmp/cause}
rm -f "$cause"
export SEEDBED_ACTOR__NAME="${SEEDBED_ACTOR__NAME:-actor-$(hostname)}" # replicas have the same process id
"$@" &
child=$!
trap 'kill -TERM "$child" 2>/dev/null' TERM INT
wait "$child"
code=$?
while kill -0 "$child" 2>/dev/null; do # a signal ended the wait, not the command
  wait "$child"
  code=$?
done
[ "$code" -eq 78 ] || exit "$code"
trap 'exit 78' TERM INT
while :; do
  sleep 60 &
  wait $!
  cat "$cause" >&2
done

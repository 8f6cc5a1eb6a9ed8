#!/bin/sh
# hold COMMAND…: runs it. Refused for good (status 78), it stays up, unhealthy, with the cause, which the command left in
# SEEDBED_CAUSE_FILE, and is tried again ever less often: under restart: on-failure an exit would be a quick loop.
cause=${SEEDBED_CAUSE_FILE:-/tmp/cause}
export SEEDBED_ACTOR__NAME="${SEEDBED_ACTOR__NAME:-actor-$(hostname)}" # replicas have the same process id
wait_s=5
while :; do
  rm -f "$cause"
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
  echo "seedbed: this is tried again in $wait_s s, and goes on by itself once it is mended" >&2
  sleep "$wait_s" &
  wait $!
  wait_s=$((wait_s * 2 > 60 ? 60 : wait_s * 2))
done
